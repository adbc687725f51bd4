"""`run`: the main function, its end, and everybody who may ask for it."""

from __future__ import annotations

import signal
import unittest

from support import Worker

PRELUDE = """
import atexit, os, signal, sys, threading, time
# No backstop: on a busy machine it may come before the deadline, which is what is tested here.
signal.signal(signal.SIGALRM, signal.SIG_IGN)
from snakepit_bridge import HeartbeatClient, run
patient = HeartbeatClient(grace=30)
def say(text):
    print(text, flush=True)
def hook():
    say('hook')
def sleeping():
    try: say('main'), time.sleep(60)
    finally: say('finally')
# Apart from its `finally`: CPython 3.11 and 3.12 think that the jump of a loop cannot raise, and
# skip the handlers around it.
def spin():
    while True: pass
def busy():
    try: say('main'), spin()
    finally: say('finally')
async def coroutine():
    import asyncio
    try: say('main'), await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        say('finally')
async def quick():
    import asyncio
    await asyncio.sleep(0)
    return 7
"""

MAINS = ("sleeping", "busy", "coroutine")


def program(*lines: str) -> str:
    return PRELUDE + "\n".join(lines)


class ByItself(unittest.TestCase):
    def finished(self, *lines: str) -> tuple[int, list[str], str]:
        worker = Worker(self, program(*lines), obey=False)
        output = worker.output.rest()
        return worker.status(), output, worker.errors()

    def test_the_result_of_a_function_comes_back_after_the_hooks(self) -> None:
        ended = self.finished("say(run(lambda: say('main') or 5, on_shutdown=[hook]))")
        self.assertEqual(ended, (0, ["main", "hook", "5"], ""))

    def test_the_result_of_a_coroutine_comes_back(self) -> None:
        ended = self.finished("say(run(quick, on_shutdown=[hook]))")
        self.assertEqual(ended, (0, ["hook", "7"], ""))

    def test_an_exception_comes_out_after_the_hooks(self) -> None:
        for main in ("lambda: 1 / 0", "fails"):
            with self.subTest(main=main):
                status, output, errors = self.finished(
                    "async def fails(): 1 / 0", f"run({main}, on_shutdown=[hook])"
                )
                self.assertEqual((status, output), (1, ["hook"]))
                self.assertIn("ZeroDivisionError", errors)

    def test_an_exit_status_of_its_own_is_kept(self) -> None:
        ended = self.finished("run(lambda: sys.exit(3), on_shutdown=[hook])")
        self.assertEqual(ended, (3, ["hook"], ""))

    def test_a_hook_that_hangs_does_not_keep_the_result(self) -> None:
        ended = self.finished(
            "slow = HeartbeatClient(grace=0.1)",
            "say(run(lambda: 5, on_shutdown=[lambda: time.sleep(60)], client=slow))",
        )
        self.assertEqual(ended, (0, ["5"], ""))

    def test_a_child_that_main_forked_does_not_run_the_hooks(self) -> None:
        # Its warnings aside: Python 3.12 and later do not like a fork beside threads.
        *ended, _warning = self.finished(
            "def main():",
            "    pid = os.fork()",
            "    if pid: os.waitpid(pid, 0)",
            "    return 'parent' if pid else 'child'",
            # A child that waited for the hooks would wait for ever.
            "say(run(main, on_shutdown=[hook], client=HeartbeatClient(grace=600)))",
        )
        self.assertEqual(ended, [0, ["child", "hook", "parent"]])


class Asked(unittest.TestCase):
    def test_every_reason_runs_hooks_then_finally_then_atexit(self) -> None:
        for main in MAINS:
            for reason, expected in ((signal.SIGTERM, 0), (signal.SIGINT, 130), (None, 69)):
                with self.subTest(main=main, reason=reason):
                    worker = Worker(
                        self,
                        program(
                            "atexit.register(say, 'atexit')",
                            f"run({main}, on_shutdown=[hook], client=patient)",
                        ),
                        obey=False,
                    )
                    self.assertEqual(worker.output.line(), "main")
                    if reason is None:
                        worker.beam.close()
                    else:
                        worker.signal(reason)
                    self.assertEqual(worker.output.rest(), ["hook", "finally", "atexit"])
                    self.assertEqual(worker.status(), expected)
                    self.assertEqual(worker.errors(), "")

    def test_a_hook_can_let_main_finish_its_work(self) -> None:
        worker = Worker(
            self,
            program(
                "stop, done = threading.Event(), threading.Event()",
                "def main():",
                "    say('main'); stop.wait(); sys.stdin.readline(); say('worked'); done.set()",
                "run(main, on_shutdown=[stop.set, done.wait], client=patient)",
            ),
            obey=False,
        )
        self.assertEqual(worker.output.line(), "main")
        worker.signal(signal.SIGTERM)
        worker.tell("")
        self.assertEqual(worker.output.rest(), ["worked"])
        self.assertEqual(worker.status(), 0)

    def test_a_main_that_will_not_end_has_the_grace_period(self) -> None:
        stubborn = (
            "def stubborn():",
            "    while True:",
            "        try: say('main'), time.sleep(60)",
            "        except BaseException: pass",
            "async def shielded():",
            "    import asyncio",
            "    while True:",
            "        try: say('main'), await asyncio.sleep(60)",
            "        except BaseException: pass",
        )
        for main in ("stubborn", "shielded"):
            for reason in ("signal", "lifeline"):
                with self.subTest(main=main, reason=reason):
                    start = f"run({main}, client=HeartbeatClient(grace=0.2))"
                    worker = Worker(self, program(*stubborn, start), obey=False)
                    self.assertEqual(worker.output.line(), "main")
                    if reason == "signal":
                        worker.signal(signal.SIGTERM)
                    else:
                        worker.beam.close()
                    self.assertEqual(worker.status(), 1)

    def test_an_exception_on_the_way_out_is_not_hidden(self) -> None:
        worker = Worker(
            self,
            program(
                "def main():",
                "    try: say('main'), time.sleep(60)",
                "    finally: 1 / 0",
                "run(main, client=patient)",
            ),
            obey=False,
        )
        self.assertEqual(worker.output.line(), "main")
        worker.signal(signal.SIGTERM)
        self.assertEqual(worker.status(), 1)
        self.assertIn("ZeroDivisionError", worker.errors())

    def test_a_thread_that_is_left_over_does_not_outlive_the_grace_period(self) -> None:
        worker = Worker(
            self,
            program(
                "def main():",
                "    threading.Thread(target=time.sleep, args=(60,)).start()",
                "    sleeping()",
                "run(main, client=HeartbeatClient(grace=0.2))",
            ),
            obey=False,
        )
        self.assertEqual(worker.output.line(), "main")
        worker.beam.close()
        self.assertEqual(worker.output.rest(), ["finally"])
        self.assertEqual(worker.status(), 1)

    def test_in_another_thread_the_process_ends_after_the_hooks(self) -> None:
        for main in ("sleeping", "coroutine"):
            with self.subTest(main=main):
                worker = Worker(
                    self,
                    program(
                        f"t = threading.Thread(target=run, args=({main},),"
                        " kwargs={'on_shutdown': [hook], 'client': patient})",
                        "t.start(); t.join()",
                        "os._exit(69)",
                    ),
                    obey=False,
                )
                self.assertEqual(worker.output.line(), "main")
                self.assertTrue(worker.ping())
                worker.beam.close()
                self.assertEqual(worker.output.rest()[0], "hook")
                self.assertEqual(worker.status(), 69)

    def test_before_main_has_begun_it_is_not_called(self) -> None:
        worker = Worker(
            self,
            program(
                "client = patient",
                "start = client.start",
                "client.start = lambda: (start(), say('up'), client.wait())",
                "run(sleeping, on_shutdown=[hook], client=client)",
            ),
            obey=False,
        )
        self.assertEqual(worker.output.line(), "up")
        worker.signal(signal.SIGTERM)
        self.assertEqual(worker.output.rest(), ["hook"])
        self.assertEqual(worker.status(), 0)


if __name__ == "__main__":
    unittest.main()
