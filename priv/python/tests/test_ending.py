"""How a worker ends: hooks once, in time, whatever else goes on."""

from __future__ import annotations

import os
import signal
import time
import unittest

from support import Worker, client

HOOKS = """
import os, sys, threading, time
def say(text):
    return lambda: print(text)
"""


class WhenTheLifelineCloses(unittest.TestCase):
    def test_the_hooks_run_in_order_and_their_output_is_not_lost(self) -> None:
        worker = Worker(self, HOOKS + client("on_shutdown=[say('one'), say('two')]"))
        worker.tell("client.on_shutdown(say('three'))")
        worker.ask("0")
        worker.beam.close()
        self.assertEqual(worker.output.rest(), ["one", "two", "three"])
        self.assertEqual(worker.status(), 69)

    def test_it_takes_less_than_100_ms(self) -> None:
        # The fastest of a few: on a busy machine any one of them may have to wait for its turn.
        workers = [Worker(self, client()) for _ in range(5)]
        times = []
        for worker in workers:
            worker.ping()
            began = time.monotonic()
            worker.beam.close()
            worker.nobody_left()
            times.append(time.monotonic() - began)
        self.assertLess(min(times), 0.1, times)

    def test_whatever_the_main_thread_does(self) -> None:
        for busy in (
            "while True: pass",
            "time.sleep(60)",
            "threading.Lock().acquire() and threading.Event().wait()",
            "os.read(os.pipe()[0], 1)",
            "threading.Thread(target=time.sleep, args=(60,)).start()",
        ):
            with self.subTest(busy=busy):
                worker = Worker(self, HOOKS + client() + busy, obey=False)
                worker.ping()
                worker.beam.close()
                self.assertEqual(worker.status(), 69)

    def test_a_hook_that_fails_does_not_keep_the_next_from_running(self) -> None:
        hooks = "on_shutdown=[lambda: 1 / 0, lambda: sys.exit(5), say('last')]"
        worker = Worker(self, HOOKS + client(hooks))
        worker.beam.close()
        self.assertEqual(worker.output.rest(), ["last"])
        self.assertEqual(worker.status(), 69)
        self.assertIn("ZeroDivisionError", worker.errors())

    def test_a_hook_that_hangs_has_the_grace_period(self) -> None:
        # Without the backstop, so that it is the deadline that is tested.
        source = HOOKS + "import signal\nsignal.signal(14, signal.SIG_IGN)\n"
        worker = Worker(self, source + client("on_shutdown=[lambda: time.sleep(60)], grace=0.3"))
        began = time.monotonic()
        worker.beam.close()
        self.assertEqual(worker.status(), 1)
        self.assertGreaterEqual(time.monotonic() - began, 0.3)

    def test_a_hook_that_keeps_the_gil_ends_too(self) -> None:
        source = HOOKS + "import ctypes\n"
        hang = "on_shutdown=[lambda: ctypes.PyDLL(None).sleep(60)], grace=0.2"
        worker = Worker(self, source + client(hang))
        worker.beam.close()
        self.assertEqual(worker.status(), -signal.SIGALRM)

    def test_a_program_that_uses_the_alarm_keeps_it(self) -> None:
        source = HOOKS + "import signal\nsignal.signal(14, lambda *_: os.write(1, b'mine\\n'))\n"
        worker = Worker(self, source + client("on_shutdown=[lambda: time.sleep(60)], grace=0.3"))
        worker.beam.close()
        self.assertEqual(worker.output.rest(), [])
        self.assertEqual(worker.status(), 1)

    def test_the_hooks_finish_although_the_main_thread_returns(self) -> None:
        hook = "on_shutdown=[lambda: (time.sleep(0.2), print('done'))]"
        worker = Worker(self, HOOKS + client(hook) + "client.wait()\n", obey=False)
        worker.ping()
        worker.beam.close()
        self.assertEqual(worker.output.rest(), ["done"])
        self.assertEqual(worker.status(), 69)

    def test_pings_are_answered_while_the_hooks_run(self) -> None:
        worker = Worker(self, HOOKS + client("on_shutdown=[lambda: sys.stdin.readline()]"))
        worker.tell("client.shutdown(4); client.wait(); print('begun', flush=True); time.sleep(60)")
        self.assertEqual(worker.output.line(), "begun")
        self.assertTrue(worker.ping("7").startswith(b"PONG:7:"))
        worker.tell("")
        self.assertEqual(worker.status(), 4)


class Signals(unittest.TestCase):
    def test_sigterm_is_success_and_sigint_is_130(self) -> None:
        for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
            with self.subTest(signal=number):
                worker = Worker(self, HOOKS + client("on_shutdown=[say('hook')]"))
                worker.signal(number)
                self.assertEqual(worker.output.rest(), ["hook"])
                self.assertEqual(worker.status(), status)

    def test_the_first_reason_counts_and_the_hooks_run_once(self) -> None:
        hook = "on_shutdown=[lambda: (print('hook', flush=True), sys.stdin.read())]"
        again = "client.wait(); os.kill(os.getpid(), 15); os.kill(os.getpid(), 2); time.sleep(0)\n"
        again += "os.write(1, b'again\\n'); time.sleep(60)\n"
        worker = Worker(self, HOOKS + client(hook) + again, obey=False)
        worker.ping()
        worker.signal(signal.SIGTERM)
        self.assertEqual({worker.output.line(), worker.output.line()}, {"hook", "again"})
        # Answered by the thread that has the later signals before it.
        worker.ping()
        worker.beam.close()
        assert worker.process.stdin
        worker.process.stdin.close()
        self.assertEqual(worker.output.rest(), [])
        self.assertEqual(worker.status(), 0)

    def test_a_handler_of_the_programs_own_stays(self) -> None:
        # Not `print`, which may not be called while the main thread is inside one.
        source = "import os, signal\nsignal.signal(15, lambda *_: os.write(1, b'mine\\n'))\n"
        worker = Worker(self, source + client())
        worker.signal(signal.SIGTERM)
        self.assertEqual(worker.output.line(), "mine")
        self.assertTrue(worker.ping())
        # Only that one: SIGINT was at its default.
        worker.signal(signal.SIGINT)
        self.assertEqual(worker.status(), 130)

    def test_an_ignored_signal_stays_ignored(self) -> None:
        ignore = "import signal\nsignal.signal(2, signal.SIG_IGN)\n"
        worker = Worker(self, ignore + client())
        self.assertTrue(worker.ask("signal.getsignal(2) is signal.SIG_IGN"))

    def test_always_replaces_a_handler_and_stop_puts_it_back(self) -> None:
        source = "import signal\nmine = lambda *_: None\nsignal.signal(15, mine)\n"
        worker = Worker(self, source + client("signals='always'"))
        self.assertFalse(worker.ask("signal.getsignal(15) is mine"))
        worker.tell("client.stop()")
        self.assertTrue(worker.ask("signal.getsignal(15) is mine"))
        self.assertTrue(worker.ask("signal.getsignal(2) is signal.default_int_handler"))

    def test_never_leaves_both_alone(self) -> None:
        worker = Worker(self, "import signal\n" + client("signals='never'"))
        self.assertTrue(worker.ask("signal.getsignal(15) is signal.SIG_DFL"))
        worker.signal(signal.SIGTERM)
        self.assertEqual(worker.status(), -signal.SIGTERM)

    def test_a_client_that_another_thread_stopped_leaves_the_default(self) -> None:
        worker = Worker(self, HOOKS + client("on_shutdown=[say('hook')]"))
        worker.tell("t = threading.Thread(target=client.stop); t.start(); t.join()")
        worker.ask("0")
        worker.signal(signal.SIGTERM)
        self.assertEqual(worker.output.rest(), [])
        self.assertEqual(worker.status(), -signal.SIGTERM)

    def test_programs_started_by_a_hook_do_not_inherit_blocked_signals(self) -> None:
        # Not `os.system`: it clears the mask.
        hook = "on_shutdown=[lambda: subprocess.run(['grep', 'SigBlk', '/proc/self/status'])]"
        worker = Worker(self, "import subprocess\n" + HOOKS + client(hook))
        worker.beam.close()
        self.assertEqual(int(worker.output.rest()[0].split()[1], 16), 0)


class OtherThreads(unittest.TestCase):
    THREAD = HOOKS + (
        "def begin():\n"
        "    global client\n"
        "    from snakepit_bridge import HeartbeatClient\n"
        "    client = HeartbeatClient(on_shutdown=[say('hook')]{}).start()\n"
        "t = threading.Thread(target=begin); t.start(); t.join()\n"
    )

    def test_a_client_that_was_started_there_answers_and_ends(self) -> None:
        worker = Worker(self, self.THREAD.format(""))
        self.assertTrue(worker.ping("7").startswith(b"PONG:7:"))
        worker.beam.close()
        self.assertEqual(worker.output.rest(), ["hook"])
        self.assertEqual(worker.status(), 69)

    def test_it_takes_no_signals(self) -> None:
        worker = Worker(self, self.THREAD.format(""))
        worker.signal(signal.SIGTERM)
        self.assertEqual(worker.status(), -signal.SIGTERM)

    def test_always_is_an_error_there(self) -> None:
        worker = Worker(self, self.THREAD.format(", signals='always'"), obey=False)
        self.assertEqual(worker.status(), 0)
        self.assertIn("ValueError: signals='always' needs the main thread", worker.errors())


class TheRestOfTheProcess(unittest.TestCase):
    def test_the_client_does_not_keep_the_interpreter_alive(self) -> None:
        for options in ("", "check=lambda: True"):
            with self.subTest(options=options):
                worker = Worker(self, client(options) + "client.touch()\n", obey=False)
                self.assertEqual(worker.status(), 0)

    def test_closed_standard_streams(self) -> None:
        def close_all() -> None:
            for fd in (0, 1, 2):
                os.close(fd)

        mark, theirs = os.pipe()
        self.addCleanup(os.close, mark)
        hooks = f"on_shutdown=[lambda: 1 / 0, lambda: os.write({theirs}, b'hook')]"
        source = (
            "import os, time\n"
            + client(hooks)
            + "used = client._wake.reader, client._wake._writer\n"
            f"os.write({theirs}, b'low' if min(used) < 3 else b'high')\n"
            "time.sleep(60)"
        )
        worker = Worker(self, source, obey=False, pass_fds=[theirs], prepare=close_all)
        os.close(theirs)
        self.assertTrue(worker.ping("7").startswith(b"PONG:7:"))
        worker.beam.close()
        self.assertEqual(worker.status(), 69)
        self.assertEqual(os.read(mark, 100), b"highhook")

    def test_two_clients_in_one_process_are_an_error(self) -> None:
        source = (
            "def second():\n"
            "    try: HeartbeatClient().start()\n"
            "    except RuntimeError as error: return str(error)\n"
        )
        worker = Worker(self, client() + source)
        self.assertEqual(worker.ask("second()"), "this process has a HeartbeatClient already")
        self.assertTrue(worker.ping("7").startswith(b"PONG:7:"))
        worker.tell("client.stop()")
        self.assertIsNone(worker.ask("second()"))

    def test_stop_lets_go_of_the_lifeline_and_the_process_lives_on(self) -> None:
        worker = Worker(self, client("check=lambda: True") + "import threading\n")
        worker.ping()
        worker.tell("client.stop(); client.stop()")
        self.assertTrue(worker.closed())
        # Nothing is in flight any more.
        self.assertEqual(worker.ask("client.get_stats().pongs_sent"), 1)
        self.assertIs(worker.ask("client.stopping"), False)
        # The thread of the check ends as well.
        worker.tell("[t.join() for t in threading.enumerate() if t.daemon]")
        self.assertEqual(worker.ask("threading.active_count()"), 1)

    def test_wrong_arguments_are_errors_before_anything_starts(self) -> None:
        from snakepit_bridge import HeartbeatClient

        async def coroutine() -> None: ...

        wrong: dict[str, object] = {
            "beam_pid": 0,
            "grace": 0,
            "signals": "sometimes",
            "check": 5,
            "stale_after": -1,
            "on_shutdown": [5],
        }
        for name, value in wrong.items():
            with self.subTest(name=name), self.assertRaisesRegex((TypeError, ValueError), name):
                HeartbeatClient(**{name: value})  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "coroutine"):
            HeartbeatClient(on_shutdown=[coroutine])


if __name__ == "__main__":
    unittest.main()
