"""The gRPC server of the package, with a real channel to it, and its messages beside generated ones."""

from __future__ import annotations

import importlib
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import support

from snakepit_bridge.grpc import values, wire

PROTO = os.path.join(os.path.dirname(support.PACKAGE), "proto")

SERVICE = """
import sys, threading, time
from snakepit_bridge.grpc import Server, current_call
server = Server(threads=2)

@server.command
def echo(value=None):
    return value

@server.command
def count(to):
    for n in range(to):
        yield n

@server.command
def leave():
    sys.exit("enough")

@server.command
def hold(seconds):
    print("held", flush=True)
    end = time.monotonic() + seconds
    while current_call().active and time.monotonic() < end:
        time.sleep(0.01)
    return current_call().session_id

server.run()
"""


def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


grpc = module("grpc")


def request(command: str, arguments: dict[str, Any], session: str = "") -> bytes:
    fields = wire.text(1, command.encode()) + wire.text(2, values.encode_map(arguments, "it"))
    return fields + (wire.text(3, session.encode()) if session else b"")


def reply(answer: bytes) -> Any:
    ((field, content),) = wire.fields(answer)
    assert isinstance(content, bytes)
    if field == 1:
        return values.decode(content)
    return [bytes(part).decode() for _number, part in wire.fields(content) if isinstance(part, bytes)]


class Values(unittest.TestCase):
    CASES: list[Any] = [
        None, True, False, 0, 1, -1, 127, 128, 2**63 - 1, -(2**63), 0.0, 1.5, math.inf, -math.inf,
        "", "grün", b"", b"\xff\x00", [], [1, [2, "x"]], {}, {"a": {1: [None, b"x"]}, True: 2.5},
    ]  # fmt: skip

    def test_a_value_comes_back_as_it_was(self) -> None:
        for value in self.CASES:
            back = values.decode(values.encode(value))
            self.assertEqual((back, type(back)), (value, type(value)))
        self.assertTrue(math.isnan(values.decode(values.encode(math.nan))))
        self.assertEqual(values.decode(values.encode((1, 2))), [1, 2])

    def test_what_cannot_be_carried_is_named_by_its_path(self) -> None:
        for value, path in (
            ({"a": [object()]}, "it['a'][0] is of the type object"),
            ([1 << 63], "it[0] is an integer of more than 64 bits"),
            ("\ud800", "it is a text with a lone surrogate"),
        ):
            with self.assertRaises((TypeError, ValueError)) as caught:
                values.encode(value, "it")
            self.assertTrue(str(caught.exception).startswith(path), caught.exception)

    def test_nesting_ends(self) -> None:
        value: Any = 1
        for _ in range(values.DEPTH):
            value = [value]
        self.assertEqual(values.decode(values.encode(value)), value)
        with self.assertRaises(ValueError):
            values.encode([value])
        deeper = wire.text(7, wire.text(1, values.encode(value)))
        with self.assertRaises(wire.Malformed):
            values.decode(deeper)

    def test_noise_is_malformed_or_a_value_and_nothing_else(self) -> None:
        import random

        source = random.Random(1)
        for _ in range(5000):
            noise = source.randbytes(source.randrange(40))
            try:
                values.decode(noise)
            except wire.Malformed:
                pass


@unittest.skipIf(module("grpc_tools") is None, "grpcio-tools is not installed")
class Proto(unittest.TestCase):
    """The messages that are made by hand are those of the .proto."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.TemporaryDirectory()
        tools = os.path.join(os.path.dirname(module("grpc_tools").__file__), "_proto")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"-I{tools}"]
        subprocess.run(
            [*command, f"--python_out={cls.directory.name}", "snakepit.proto"], check=True
        )
        sys.path.insert(0, cls.directory.name)
        cls.pb = importlib.import_module("snakepit_pb2")

    @classmethod
    def tearDownClass(cls) -> None:
        sys.path.remove(cls.directory.name)
        cls.directory.cleanup()

    def generated(self, value: Any) -> Any:
        pb = self.pb
        if value is None:
            return pb.Value(null=True)
        if isinstance(value, bool):
            return pb.Value(boolean=value)
        if isinstance(value, int):
            return pb.Value(integer=value)
        if isinstance(value, float):
            return pb.Value(float=value)
        if isinstance(value, str):
            return pb.Value(text=value)
        if isinstance(value, bytes):
            return pb.Value(binary=value)
        if isinstance(value, list):
            return pb.Value(list=pb.List(items=[self.generated(item) for item in value]))
        entries = [
            pb.Entry(key=self.generated(key), value=self.generated(item))
            for key, item in value.items()
        ]
        return pb.Value(map=pb.Map(entries=entries))

    def test_values(self) -> None:
        for value in Values.CASES:
            message = self.generated(value)
            self.assertEqual(values.encode(value), message.SerializeToString(), value)
            self.assertEqual(values.decode(message.SerializeToString()), value)

    def test_a_service_of_generated_code_is_served_beside_the_commands(self) -> None:
        from snakepit_bridge.grpc import Server as Served

        path = os.path.join(self.directory.name, "greeter.proto")
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                'syntax = "proto3"; package test; message Text { string text = 1; }'
                "service Greeter { rpc Greet(Text) returns (Text); }"
            )
        outputs = [f"--{kind}_out={self.directory.name}" for kind in ("python", "grpc_python")]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{self.directory.name}"]
        subprocess.run([*command, *outputs, "greeter.proto"], check=True)
        pb = importlib.import_module("greeter_pb2")
        generated = importlib.import_module("greeter_pb2_grpc")

        class Greeter(generated.GreeterServicer):  # type: ignore[name-defined, misc]
            def Greet(self, request: Any, context: Any) -> Any:
                return pb.Text(text=f"hello {request.text}")

        server = Served()
        server.add(lambda s: generated.add_GreeterServicer_to_server(Greeter(), s))
        self.assertIn("test.Greeter", server.services)
        port = server.grpc.add_insecure_port("127.0.0.1:0")
        server.grpc.start()
        self.addCleanup(lambda: server.grpc.stop(0).wait())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = generated.GreeterStub(channel)
            self.assertEqual(stub.Greet(pb.Text(text="you"), timeout=60).text, "hello you")
            ping = channel.unary_unary("/snakepit.Heartbeat/Ping")
            self.assertRegex(ping(b"PING:1", timeout=60), rb"^PONG:1:")

    def test_requests(self) -> None:
        message = self.pb.ExecuteRequest(
            command="echo", arguments=self.generated({"value": 1}).map, session_id="s"
        )
        self.assertEqual(request("echo", {"value": 1}, "s"), message.SerializeToString())


@unittest.skipIf(grpc is None, "grpcio is not installed")
class Server(unittest.TestCase):
    def start(self, *arguments: str, source: str = SERVICE) -> tuple[support.Worker, Any]:
        command = [sys.executable, "-c", source, *arguments]
        worker = support.Worker(self, "", obey=False, lifeline=False, command=command)
        return worker, self.channel(worker)

    def channel(self, worker: support.Worker) -> Any:
        line = worker.output.line()
        self.assertTrue(line.startswith("listening on "), line)
        channel = grpc.insecure_channel(line[len("listening on ") :])
        self.addCleanup(channel.close)
        return channel

    def execute(self, channel: Any, command: str, arguments: dict[str, Any], **options: Any) -> Any:
        options.setdefault("timeout", support.DEADLINE)
        method = channel.unary_unary("/snakepit.Commands/Execute")
        return reply(method(request(command, arguments, "s1"), **options))

    def code(self, call: Any) -> Any:
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        return caught.exception.code()

    def test_commands_health_and_signs_of_life(self) -> None:
        worker, channel = self.start("--run-id", "abcdefg", "--elixir-address", "x:1", "--mine")
        self.assertEqual(self.execute(channel, "echo", {"value": [1, "x"]}), [1, "x"])
        stream = channel.unary_stream("/snakepit.Commands/ExecuteStream")
        parts = stream(request("count", {"to": 3}), timeout=support.DEADLINE)
        self.assertEqual([reply(part) for part in parts], [0, 1, 2])
        ping = channel.unary_unary("/snakepit.Heartbeat/Ping")
        self.assertRegex(ping(b"PING:1", timeout=support.DEADLINE), rb"^PONG:1:\d+$")

        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        for name in (b"", b"snakepit.Commands"):
            asked = wire.text(1, name) if name else b""
            self.assertEqual(check(asked, timeout=support.DEADLINE), b"\x08\x01")
        self.assertEqual(
            self.code(lambda: check(wire.text(1, b"no.Such"), timeout=support.DEADLINE)),
            grpc.StatusCode.NOT_FOUND,
        )
        worker.signal(signal.SIGTERM)
        self.assertEqual(worker.status(), 0)

    def test_failures_are_told(self) -> None:
        _worker, channel = self.start()
        kind, text, trace = self.execute(channel, "echo", {"no": 1})
        self.assertEqual(kind, "TypeError")
        self.assertIn("unexpected keyword", text)
        self.assertIn("TypeError", trace)
        self.assertEqual(self.execute(channel, "count", {"to": 1})[0], "TypeError")
        self.assertEqual(self.execute(channel, "leave", {})[:2], ["SystemExit", "enough"])
        codes = grpc.StatusCode
        self.assertEqual(self.code(lambda: self.execute(channel, "ekko", {})), codes.UNIMPLEMENTED)
        method = channel.unary_unary("/snakepit.Commands/Execute")
        self.assertEqual(self.code(lambda: method(b"\xff", timeout=60)), codes.INVALID_ARGUMENT)

    def test_calls_that_run_may_end_and_one_more_than_there_are_threads_is_refused(self) -> None:
        worker, channel = self.start()
        method = channel.unary_unary("/snakepit.Commands/Execute")
        held = [method.future(request("hold", {"seconds": 1.0}, "s2"), timeout=60) for _ in "ab"]
        self.assertEqual([worker.output.line() for _ in "ab"], ["held", "held"])
        busy = self.code(lambda: self.execute(channel, "echo", {}))
        self.assertEqual(busy, grpc.StatusCode.RESOURCE_EXHAUSTED)
        worker.signal(signal.SIGTERM)
        self.assertEqual([reply(call.result(60)) for call in held], ["s2", "s2"])
        self.assertEqual(worker.status(), 0)

    def test_what_cannot_be_a_command_is_refused(self) -> None:
        from snakepit_bridge.grpc import Server as Served

        async def later() -> None: ...

        def twice() -> None: ...

        server = Served()
        server.command(twice)
        for function, error in ((later, TypeError), (twice, ValueError)):
            with self.assertRaises(error):
                server.command(function)

    def test_a_port_that_is_taken_is_not_shared(self) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = str(other.getsockname()[1])
            worker = support.Worker(
                self, "", obey=False, lifeline=False,
                command=[sys.executable, "-c", SERVICE, "--port", port],
            )  # fmt: skip
            self.assertEqual(worker.status(), 1)
            self.assertIn(f"cannot listen on 127.0.0.1:{port}", worker.errors())

    def test_the_socket_of_a_server_that_was_killed_is_taken_over(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "s.sock")
            worker, channel = self.start("--socket", path)
            self.assertEqual(self.execute(channel, "echo", {"value": 1}), 1)
            channel.close()
            worker.signal(signal.SIGKILL)
            worker.status()
            self.assertTrue(os.path.exists(path))
            _worker, channel = self.start("--socket", path)
            self.assertEqual(self.execute(channel, "echo", {"value": 2}), 2)

    def test_the_address_is_announced_as_services_do(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            name = f"snakepit-test-{os.getpid()}"
            notify.bind("\0" + name)
            notify.settimeout(support.DEADLINE)
            support.Worker(
                self, "", obey=False, lifeline=False, env={"NOTIFY_SOCKET": "@" + name},
                command=[sys.executable, "-c", SERVICE, "--socket", "@"],
            )  # fmt: skip
            lines = notify.recv(4096).decode().split("\n")
            self.assertRegex(lines[0], "^X_SNAKEPIT_ADDRESS=unix-abstract:snakepit-")
            self.assertEqual(lines[1], "READY=1")

    @unittest.skipIf(module("grpc_reflection") is None, "grpcio-reflection is not installed")
    def test_services_can_be_listed(self) -> None:
        _worker, channel = self.start()
        reflection = importlib.import_module("grpc_reflection.v1alpha.reflection_pb2")
        stub = importlib.import_module("grpc_reflection.v1alpha.reflection_pb2_grpc")
        asked = iter([reflection.ServerReflectionRequest(list_services="")])
        answers = stub.ServerReflectionStub(channel).ServerReflectionInfo(asked, timeout=60)
        names = {service.name for service in next(answers).list_services_response.service}
        self.assertLessEqual({"snakepit.Commands", "grpc.health.v1.Health"}, names)


if __name__ == "__main__":
    unittest.main()
