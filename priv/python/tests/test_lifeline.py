"""The protocol on the lifeline, with a real process at the other end."""

from __future__ import annotations

import os
import socket
import tempfile
import time
import unittest

from support import Worker, client, eventually


class Pings(unittest.TestCase):
    def test_a_ping_comes_back_with_the_workers_clock(self) -> None:
        worker = Worker(self, client())
        before = time.time_ns() // 1_000_000
        kind, timestamp, now = worker.ping("1712345678901").split(b":")
        after = time.time_ns() // 1_000_000
        self.assertEqual((kind, timestamp), (b"PONG", b"1712345678901"))
        self.assertTrue(before <= int(now) <= after, (before, now, after))

    def test_the_timestamp_is_opaque(self) -> None:
        worker = Worker(self, client())
        for timestamp in (b"", b"a:b::c", b"\xff\x00\x80", b"-1.5e3", b" x "):
            worker.send(b"PING:" + timestamp + b"\n")
            self.assertRegex(worker.pong(), b"^PONG:" + _quoted(timestamp) + rb":\d+$")

    def test_a_line_may_come_in_pieces(self) -> None:
        worker = Worker(self, client())
        for piece in (b"PI", b"NG", b":4", b"2"):
            worker.send(piece)
            # Each piece has been read before the next one goes out.
            eventually(lambda: _unread(worker) == 0, "the worker reads the piece")
        self.assertTrue(worker.silent())
        worker.send(b"\nPING:43\nPING:4")
        self.assertTrue(worker.pong().startswith(b"PONG:42:"))
        self.assertTrue(worker.pong().startswith(b"PONG:43:"))
        worker.send(b"4\n")
        self.assertTrue(worker.pong().startswith(b"PONG:44:"))

    def test_many_pings_at_once_are_all_answered_in_order(self) -> None:
        worker = Worker(self, client())
        worker.send(b"".join(b"PING:%d\n" % number for number in range(1000)))
        answered = [worker.pong().split(b":")[1] for _ in range(1000)]
        self.assertEqual(answered, [b"%d" % number for number in range(1000)])

    def test_garbage_is_ignored_and_counted(self) -> None:
        worker = Worker(self, client())
        worker.send(b"\nping:1\nPONG:1:2\n\x00\xff\xfe\nPING\nHELLO PING:1\n")
        self.assertTrue(worker.ping("7").startswith(b"PONG:7:"))
        self.assertTrue(worker.silent())
        self.assertEqual(worker.ask("client.get_stats().lines_ignored"), 6)

    def test_an_endless_line_takes_no_memory(self) -> None:
        worker = Worker(self, client() + "import resource\n")
        usage = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"
        worker.ping()
        before = worker.ask(usage)
        worker.send(b"PING:")
        for _ in range(64):
            worker.send(b"x" * (512 * 1024))
        worker.send(b"\n")
        self.assertTrue(worker.ping("7").startswith(b"PONG:7:"))
        self.assertTrue(worker.silent())
        self.assertLess(worker.ask(usage) - before, 8 * 1024)
        self.assertEqual(worker.ask("client.get_stats().lines_ignored"), 1)

    def test_the_longest_line_is_answered_and_one_byte_more_is_not(self) -> None:
        worker = Worker(self, client())
        timestamp = "x" * (1024 - len("PING:"))
        worker.send(f"PING:{timestamp}y\n".encode())
        self.assertTrue(worker.ping(timestamp).startswith(f"PONG:{timestamp}:".encode()))

    def test_statistics(self) -> None:
        worker = Worker(self, client())
        fresh = worker.ask("client.get_stats().as_dict()")
        self.assertEqual((fresh["pings_received"], fresh["last_ping_ms"]), (0, None))
        self.assertIs(fresh["lifeline"], True)
        for _ in range(3):
            pong = worker.ping()
        # The answer is counted after it has gone out.
        eventually(lambda: worker.ask("client.get_stats().pongs_sent") == 3, "the count")
        stats = worker.ask("client.get_stats().as_dict()")
        self.assertEqual((stats["pings_received"], stats["pongs_sent"]), (3, 3))
        self.assertLessEqual(abs(stats["last_ping_ms"] - int(pong.split(b":")[2])), 1000)
        self.assertGreaterEqual(stats["uptime_ms"], fresh["uptime_ms"])


class WhatAHeartbeatProves(unittest.TestCase):
    def test_a_busy_loop_in_python_answers(self) -> None:
        worker = Worker(self, client() + "while True: pass\n", obey=False)
        self.assertTrue(worker.ping("7").startswith(b"PONG:7:"))

    def test_a_c_function_that_keeps_the_gil_does_not(self) -> None:
        worker = Worker(self, client() + "import ctypes, time\n")

        def answered_only_after_the_call() -> bool:
            worker.tell("print('calling', flush=True); ctypes.PyDLL(None).usleep(300_000)")
            self.assertEqual(worker.output.line(), "calling")
            # It may slip in before the call has begun: then another round tells.
            now = int(worker.ping().split(b":")[2])
            return bool(worker.ask("time.time_ns() // 1_000_000") <= now + 100)

        eventually(answered_only_after_the_call, "an answer that waits for the end of the call")


class APeerThatDoesNotRead(unittest.TestCase):
    def flood(self, worker: Worker) -> None:
        """Pings until answers have to be dropped, without reading one."""

        def dropped() -> bool:
            worker.send(b"PING:0123456789\n" * 4096)
            return bool(worker.ask("client.get_stats().pongs_dropped > 0"))

        eventually(dropped, "answers are dropped")

    def test_does_not_hide_the_end_of_the_beam(self) -> None:
        worker = Worker(self, client())
        self.flood(worker)
        worker.beam.close()
        self.assertEqual(worker.status(), 69)

    def test_is_answered_again_when_it_reads_again(self) -> None:
        worker = Worker(self, client())
        self.flood(worker)
        worker.send(b"PING:late\n")
        stats = "client.get_stats().pings_received"
        eventually(lambda: worker.ask(stats) % 4096 == 1, "the last ping is read")

        def answered() -> bool:
            # Room in the client's own buffer appears as the answers are read.
            worker.send(b"PING:again\n")
            return any(worker.pong().startswith(b"PONG:again") for _ in range(200))

        eventually(answered, "a ping is answered")


class Adoption(unittest.TestCase):
    def refused(self, value: str, *fds: int) -> str:
        worker = Worker(
            self,
            client(),
            obey=False,
            lifeline=False,
            env={"SNAKEPIT_LIFELINE_FD": value},
            pass_fds=fds,
        )
        self.assertEqual(worker.status(), 1)
        return worker.errors().splitlines()[-1]

    def test_a_variable_that_is_no_open_socket_is_an_error(self) -> None:
        with tempfile.TemporaryFile() as file:
            number = file.fileno()
            self.assertIn("is not a socket", self.refused(str(number), number))
        for value in ("", "three", "-1", "987654", "9" * 30):
            with self.subTest(value=value):
                message = self.refused(value)
                self.assertIn("ValueError", message)
                self.assertIn(f"SNAKEPIT_LIFELINE_FD={value!r} is not an open", message)

    def test_the_descriptor_stays_with_the_process(self) -> None:
        worker = Worker(self, "import os, subprocess, sys\n" + client())
        self.assertIsNone(worker.ask("os.environ.get('SNAKEPIT_LIFELINE_FD')"))
        # `os.system` reads the environment of C and leaves every inheritable descriptor open.
        worker.tell("os.system('ls -l /proc/self/fd; env; echo end')")
        seen = list(iter(worker.output.line, "end"))
        self.assertTrue([line for line in seen if "PYTHONPATH" in line], seen)
        self.assertFalse([line for line in seen if "LIFELINE" in line], seen)
        self.assertFalse([line for line in seen if f"[{worker.lifeline_inode}]" in line], seen)

    def test_without_a_lifeline_the_worker_runs(self) -> None:
        worker = Worker(self, client(), lifeline=False)
        self.assertIs(worker.ask("client.get_stats().lifeline"), False)
        worker.signal(15)
        self.assertEqual(worker.status(), 0)


class TheEndOfTheLifeline(unittest.TestCase):
    def test_a_half_closed_lifeline_is_closed(self) -> None:
        worker = Worker(self, client())
        worker.beam.shutdown(socket.SHUT_WR)
        self.assertEqual(worker.status(), 69)

    def test_a_lifeline_that_was_closed_before_the_start(self) -> None:
        ready, go = os.pipe()
        self.addCleanup(os.close, go)
        source = f"import os; os.read({ready}, 1)\n" + client() + "while True: pass\n"
        worker = Worker(self, source, obey=False, pass_fds=[ready])
        os.close(ready)
        worker.beam.close()
        os.write(go, b"x")
        self.assertEqual(worker.status(), 69)

    def test_a_write_to_a_closed_peer_is_not_a_broken_pipe_signal(self) -> None:
        source = "import signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        worker = Worker(self, source + client())
        worker.beam.shutdown(socket.SHUT_RD)
        worker.send(b"PING:1\n")
        eventually(lambda: worker.ask("client.get_stats().pongs_sent") == 1, "the answer")
        worker.beam.close()
        self.assertEqual(worker.status(), 69)


def _quoted(text: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in text)


def _unread(worker: Worker) -> int:
    """Bytes that the test has sent and the worker has not read (`SIOCOUTQ`)."""
    import array
    import fcntl
    import termios

    amount = array.array("i", [0])
    fcntl.ioctl(worker.beam, termios.TIOCOUTQ, amount)
    return amount[0]


if __name__ == "__main__":
    unittest.main()
