"""Pings that are not answered because the worker says that it is stuck."""

from __future__ import annotations

import socket
import unittest
from typing import Optional

from support import Worker, client, eventually


class Check(unittest.TestCase):
    def withheld(self, worker: Worker, timestamp: str) -> None:
        before = worker.ask("client.get_stats().pongs_withheld")
        worker.send(f"PING:{timestamp}\n".encode())
        eventually(
            lambda: worker.ask("client.get_stats().pongs_withheld") > before, "a pong is withheld"
        )
        self.assertTrue(worker.silent())

    def test_a_false_result_withholds_the_answer_until_it_is_true_again(self) -> None:
        worker = Worker(self, "well = True\n" + client("check=lambda: well"))
        self.assertTrue(worker.ping("1").startswith(b"PONG:1:"))
        worker.tell("well = False")
        self.withheld(worker, "2")
        worker.tell("well = True")
        worker.ask("0")
        self.assertTrue(worker.ping("3").startswith(b"PONG:3:"))

    def test_an_exception_is_a_no_and_is_reported_once(self) -> None:
        worker = Worker(self, client("check=lambda: 1 / 0"))
        self.withheld(worker, "1")
        self.withheld(worker, "2")
        worker.beam.close()
        self.assertEqual(worker.status(), 69)
        self.assertEqual(worker.errors().count("ZeroDivisionError"), 1)

    def test_a_check_that_hangs_withholds_answers_and_hides_nothing(self) -> None:
        source = "import threading\ngate = threading.Event()\n"
        worker = Worker(self, source + client("check=gate.wait"))
        worker.send(b"PING:1\n")
        eventually(lambda: worker.ask("client.get_stats().pings_received") == 1, "the ping")
        self.assertTrue(worker.silent())
        worker.tell("gate.set()")
        self.assertTrue(worker.pong().startswith(b"PONG:1:"))
        worker.tell("gate.clear()")
        worker.ask("0")
        worker.send(b"PING:2\nPING:3\nPING:4\n")
        eventually(lambda: worker.ask("client.get_stats().pings_received") >= 2, "the ping")
        worker.beam.close()
        self.assertEqual(worker.status(), 69)


class StaleAfter(unittest.TestCase):
    def test_no_touch_no_answer(self) -> None:
        worker = Worker(self, client("stale_after=0.3"))

        def withheld() -> bool:
            worker.send(b"PING:1\n")
            return bool(worker.ask("client.get_stats().pongs_withheld"))

        eventually(withheld, "a pong is withheld")

        def answered() -> bool:
            before = worker.ask("client.get_stats().pongs_sent")
            worker.tell("client.touch()")
            worker.send(b"PING:2\n")
            return bool(worker.ask("client.get_stats().pongs_sent") > before)

        eventually(answered, "a pong after a touch")

    def test_an_event_loop_is_touched_until_it_is_blocked(self) -> None:
        source = (
            "import asyncio, sys, time\n"
            "from snakepit_bridge import HeartbeatClient, run\n"
            "client = HeartbeatClient(stale_after=0.3)\n"
            "async def main():\n"
            "    loop = asyncio.get_running_loop()\n"
            "    print('ready', flush=True)\n"
            "    await loop.run_in_executor(None, sys.stdin.readline)\n"
            "    while True: time.sleep(1)\n"
            "run(main, client=client)\n"
        )
        worker = Worker(self, source, obey=False)
        self.assertEqual(worker.output.line(), "ready")
        first = int(worker.ping("0").split(b":")[2])

        def answered_late() -> bool:
            # On a busy machine the loop itself may be late for one of them.
            answer = self.answer(worker)
            return answer is not None and int(answer.split(b":")[2]) > first + 900

        eventually(answered_late, "an answer after three times stale_after")
        worker.tell("")
        eventually(lambda: self.answer(worker) is None, "the blocked loop is silent")

    def answer(self, worker: Worker) -> Optional[bytes]:
        worker.beam.settimeout(0.2)
        try:
            return worker.ping()
        except socket.timeout:
            return None


if __name__ == "__main__":
    unittest.main()
