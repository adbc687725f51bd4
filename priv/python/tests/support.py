"""Real workers for the tests: a Python process, its lifeline, and nothing left afterwards."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any, Callable, Optional, Sequence

TESTS = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(TESTS)
#: Far beyond what anything here takes: only a failure waits for it.
DEADLINE = 60.0
#: What a worker that should have ended, and its children, may burn.
LIMITS = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (30, 30))\n"

#: Compiled once for all workers, and not into the source tree.
BYTECODE = tempfile.TemporaryDirectory(prefix="snakepit-bridge-")

if PACKAGE not in sys.path:
    sys.path.insert(0, PACKAGE)


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """The first true result of `condition`, or a failure after the deadline."""
    end = time.monotonic() + DEADLINE
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"did not happen in {DEADLINE} s: {what}")
        time.sleep(0.005)


def wait_readable(fd: int, what: str) -> None:
    if not select.select([fd], [], [], DEADLINE)[0]:
        raise AssertionError(f"did not happen in {DEADLINE} s: {what}")


class LineReader:
    """Lines from a descriptor, each with a deadline."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = b""

    def line(self) -> str:
        while b"\n" not in self._data:
            wait_readable(self._fd, f"a line of output; so far {self._data!r}")
            data = os.read(self._fd, 65536)
            if not data:
                raise AssertionError(f"end of output; left {self._data!r}")
            self._data += data
        line, self._data = self._data.split(b"\n", 1)
        return line.decode()

    def rest(self) -> list[str]:
        while True:
            wait_readable(self._fd, "end of output")
            data = os.read(self._fd, 65536)
            if not data:
                return self._data.decode().splitlines()
            self._data += data


class Worker:
    """A Python program with a lifeline, of which the test holds the other end as `beam`.

    `source` runs first. With `obey` it then prints `ready` and executes each line of its stdin.
    Every process forked from it holds the write end of a pipe, so that the test can tell when the
    last one is gone.
    """

    def __init__(
        self,
        test: unittest.TestCase,
        source: str,
        *,
        obey: bool = True,
        lifeline: bool = True,
        env: Optional[dict[str, str]] = None,
        command: Optional[Sequence[str]] = None,
        pass_fds: Sequence[int] = (),
        prepare: Optional[Callable[[], object]] = None,
    ) -> None:
        self.beam, theirs = socket.socketpair()
        self.beam.settimeout(DEADLINE)
        self.lifeline_inode = os.fstat(theirs.fileno()).st_ino
        self._survivors, witness = os.pipe()
        # Nothing of the caller's Python: unbuffered output would hide that a flush is missing.
        environ = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SNAKEPIT_", "PYTHON"))
        }
        environ["PYTHONPATH"] = os.pathsep.join((PACKAGE, TESTS))
        environ["PYTHONPYCACHEPREFIX"] = BYTECODE.name
        fds = [witness, *pass_fds]
        if lifeline:
            environ["SNAKEPIT_LIFELINE_FD"] = str(theirs.fileno())
            fds.append(theirs.fileno())
        environ.update(env or {})
        if obey:
            source += "\nimport sys\nprint('ready', flush=True)\n"
            source += "for line in sys.stdin: exec(line)\n"
        self.process = subprocess.Popen(
            # Without `site`, which takes longer than the rest of the start.
            [sys.executable, "-S", "-c", LIMITS + source] if command is None else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            pass_fds=fds,
            preexec_fn=prepare,
        )
        theirs.close()
        os.close(witness)
        assert self.process.stdout and self.process.stderr
        self.output = LineReader(self.process.stdout.fileno())
        self._pongs = b""
        test.addCleanup(self._leave_nothing)
        if obey and self.output.line() != "ready":
            raise AssertionError("the worker did not start")

    def tell(self, statement: str) -> None:
        """Has the worker execute one line."""
        assert self.process.stdin
        self.process.stdin.write(statement.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, expression: str) -> Any:
        """The value of an expression in the worker."""
        self.tell(f"print(repr({expression}), flush=True)")
        return eval(self.output.line())

    def send(self, data: bytes) -> None:
        self.beam.sendall(data)

    def pong(self) -> bytes:
        """The next line from the worker."""
        while b"\n" not in self._pongs:
            data = self.beam.recv(65536)
            if not data:
                raise AssertionError("the worker closed the lifeline")
            self._pongs += data
        line, self._pongs = self._pongs.split(b"\n", 1)
        return line

    def ping(self, timestamp: str = "1") -> bytes:
        self.send(f"PING:{timestamp}\n".encode())
        return self.pong()

    def silent(self) -> bool:
        """Whether nothing has come over the lifeline."""
        return not self._pongs and not select.select([self.beam], [], [], 0)[0]

    def closed(self) -> bool:
        """Waits for the end of file that says that no process holds the lifeline."""
        return self.beam.recv(1) == b""

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def status(self) -> int:
        """The exit status, negative for a signal."""
        return self.process.wait(DEADLINE)

    def errors(self) -> str:
        assert self.process.stderr
        return self.process.stderr.read().decode()

    def nobody_left(self) -> bool:
        """Waits until the worker and all that it forked are gone."""
        wait_readable(self._survivors, "the end of the last process")
        return os.read(self._survivors, 1) == b""

    def _leave_nothing(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                if stream:
                    stream.close()
            except OSError:
                pass
        self.beam.close()
        try:
            self.nobody_left()
        finally:
            os.close(self._survivors)


def descriptors(os_pid: int) -> list[str]:
    """What the descriptors of a process are, by the kernel's word."""
    found = []
    for name in os.listdir(f"/proc/{os_pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{os_pid}/fd/{name}"))
        except FileNotFoundError:
            pass
    return found


def bystander(test: unittest.TestCase) -> subprocess.Popen[bytes]:
    """A process that does nothing, as a stand-in for a BEAM."""
    process = subprocess.Popen(["sleep", "60"])

    def end() -> None:
        process.kill()
        process.wait(DEADLINE)

    test.addCleanup(end)
    return process


def stop_and_wait(process: subprocess.Popen[bytes]) -> None:
    """SIGSTOP, and return when the kernel says that the process is stopped."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def client(options: str = "") -> str:
    """The source of a worker with a started client.

    Its grace period is long unless it says otherwise: a busy machine must not cut a hook short.
    """
    if "grace=" not in options:
        options = ", ".join(filter(None, (options, "grace=30")))
    return (
        "from snakepit_bridge import HeartbeatClient\n"
        f"client = HeartbeatClient({options}).start()\n"
    )
