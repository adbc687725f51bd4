"""`HeartbeatServicer` with the real grpcio, over a real socket."""

from __future__ import annotations

import asyncio
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import support  # noqa: F401  (puts the package on the path)
from snakepit_bridge import HeartbeatServicer

try:
    import grpc
except ImportError:
    grpc = None

NEEDS_GRPC = unittest.skipIf(
    grpc is None, "grpcio is not installed: pip install 'snakepit-bridge[grpc]'"
)


@NEEDS_GRPC
class Servicer(unittest.TestCase):
    def ping_with(self, servicer: HeartbeatServicer) -> Callable[[bytes], Any]:
        server = grpc.server(ThreadPoolExecutor(max_workers=2))
        servicer.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.addCleanup(lambda: server.stop(None).wait())
        self.addCleanup(channel.close)
        call = channel.unary_unary("/snakepit.Heartbeat/Ping")
        return lambda request: call(request, timeout=support.DEADLINE, wait_for_ready=True)

    def code(self, ping: Callable[[bytes], Any], request: bytes) -> Any:
        with self.assertRaises(grpc.RpcError) as caught:
            ping(request)
        return caught.exception.code()

    def test_a_ping_is_answered(self) -> None:
        servicer = HeartbeatServicer()
        ping = self.ping_with(servicer)
        self.assertRegex(ping(b"PING:12:34"), rb"^PONG:12:34:\d+$")
        stats = servicer.get_stats()
        self.assertEqual((stats.pings_received, stats.pongs_sent), (1, 1))

    def test_a_string_value_is_answered_with_one(self) -> None:
        ping = self.ping_with(HeartbeatServicer())
        self.assertRegex(ping(b"\x0a\x06PING:1"), rb"^\x0a.PONG:1:\d+$")
        long = b"PING:" + b"x" * 300
        answer = ping(b"\x0a" + bytes((len(long) & 0x7F | 0x80, len(long) >> 7)) + long)
        self.assertEqual(answer[1] & 0x7F | answer[2] << 7, len(answer) - 3)
        self.assertTrue(answer[3:].startswith(b"PONG:" + b"x" * 300 + b":"))

    def test_anything_else_is_an_invalid_argument(self) -> None:
        servicer = HeartbeatServicer()
        ping = self.ping_with(servicer)
        for request in (b"", b"PONG:1", b"\x0a", b"\x0a\x07PING:1", b"\x0a\xff\xff\xff\xff\xff"):
            with self.subTest(request=request):
                self.assertEqual(self.code(ping, request), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(servicer.get_stats().lines_ignored, 5)

    def test_a_worker_that_is_not_alive_is_unavailable(self) -> None:
        well = [False]
        servicer = HeartbeatServicer(check=lambda: well[0])
        ping = self.ping_with(servicer)
        self.assertEqual(self.code(ping, b"PING:1"), grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(servicer.get_stats().pongs_withheld, 1)
        self.assertEqual(servicer.get_stats().pongs_sent, 0)
        well[0] = True
        self.assertTrue(ping(b"PING:1").startswith(b"PONG:1:"))

    def test_an_overdue_touch_is_unavailable(self) -> None:
        servicer = HeartbeatServicer(stale_after=0.000001)
        ping = self.ping_with(servicer)
        self.assertEqual(self.code(ping, b"PING:1"), grpc.StatusCode.UNAVAILABLE)

    def test_a_server_of_grpc_aio(self) -> None:
        async def scenario() -> tuple[bytes, Any]:
            server = grpc.aio.server()
            HeartbeatServicer().add_to_server(server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.unary_unary("/snakepit.Heartbeat/Ping")
                answer = await call(b"PING:1", timeout=support.DEADLINE)
                try:
                    await call(b"nonsense", timeout=support.DEADLINE)
                except grpc.aio.AioRpcError as error:
                    code = error.code()
            await server.stop(None)
            return answer, code

        answer, code = asyncio.run(scenario())
        self.assertRegex(answer, rb"^PONG:1:\d+$")
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)


class WithoutGrpc(unittest.TestCase):
    def test_the_package_and_the_servicer_load_without_grpcio(self) -> None:
        worker = support.Worker(
            self,
            "import sys\nsys.modules['grpc'] = None\n"
            "from snakepit_bridge.heartbeat import HeartbeatServicer\n"
            "HeartbeatServicer().touch()\n",
            obey=False,
        )
        self.assertEqual((worker.status(), worker.errors()), (0, ""))

    def test_the_package_loads_nothing_that_slows_a_start(self) -> None:
        heavy = "{'asyncio', 'dataclasses', 'inspect', 'logging', 'socket', 'typing'}"
        worker = support.Worker(self, support.client() + "import sys\n")
        fresh = support.Worker(self, "import sys\n", lifeline=False)
        loaded = f"sorted({heavy} & set(sys.modules))"
        self.assertEqual(worker.ask(loaded), fresh.ask(loaded))


if __name__ == "__main__":
    unittest.main()
