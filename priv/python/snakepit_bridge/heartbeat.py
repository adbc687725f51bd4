"""The heartbeat client: a daemon thread that answers the BEAM and ends the process without it.

What a heartbeat proves
-----------------------
A pong says that the process is scheduled, that the interpreter hands its lock (the GIL) around,
and that this thread runs. So heartbeats stop when the process is stopped (SIGSTOP), swapped out
beyond use, or inside a C function that never gives the lock back. They do *not* stop when the main
thread loops for ever in Python, waits for a lock that nobody will release, or sits in a C function
that has given the lock back: the other threads run on.

To have those found, say what progress is. `stale_after=30` withholds pongs unless the program
calls `touch()` at least every 30 seconds; `check=function` withholds them unless the function
returns something true. Either way the BEAM sees missed heartbeats and replaces the worker.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import threading
import time
from collections import deque

from . import lifeline, protocol
from .descriptors import WakePipe
from .ending import STATUS_BEAM_GONE, Ending
from .liveness import Checker, Liveness
from .process_watch import POLL_SECONDS, ProcessWatch
from .report import report
from .servicer import HeartbeatServicer
from .signals import MODES, STATUS, SignalHandlers, block_signals, restore_mask
from .stats import HeartbeatStats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Callable, Iterable, TypeVar

    from .signals import Mode

    Hook = TypeVar("Hook", bound=Callable[[], object])

__all__ = ["HeartbeatClient", "HeartbeatServicer", "HeartbeatStats"]

#: The heartbeat thread itself failed: without it the process would not notice the BEAM's end.
_STATUS_BROKEN = 70


class HeartbeatClient:
    """Answers heartbeats, and ends this process when its BEAM is gone. One per process.

    `start` adopts the lifeline in `SNAKEPIT_LIFELINE_FD`. Without one it watches `beam_pid`, if
    given; without that it only handles signals, so that a worker can be tried by hand.

    The process ends when the lifeline closes (status 69), on SIGTERM (0), on SIGINT (130), or by
    `shutdown`. The hooks run once, in the order in which they were added, in a thread of their
    own; then `os._exit`, after `grace` seconds (status 1) also when a hook hangs.

    `signals` is `"default"` to take SIGTERM and SIGINT only where no handler was installed and
    only in the main thread, `"always"` to replace handlers, `"never"` to leave both alone. Python
    runs handlers between two bytecodes of the main thread: while that thread is inside a long C
    call the signal waits.

    `check` and `stale_after` decide which pings are answered: see the module.

    In a child made by `os.fork` or `multiprocessing` the client is gone: it does not answer, it
    does not hold the lifeline, and the signal handlers are those from before `start`.
    """

    def __init__(
        self,
        *,
        beam_pid: int | None = None,
        on_shutdown: Iterable[Callable[[], object]] = (),
        grace: float = 2.0,
        signals: Mode = "default",
        check: Callable[[], object] | None = None,
        stale_after: float | None = None,
    ) -> None:
        if beam_pid is not None and not (isinstance(beam_pid, int) and beam_pid > 0):
            raise ValueError(f"expected beam_pid to be a positive integer, got: {beam_pid!r}")
        if signals not in MODES:
            raise ValueError(f"expected signals to be one of {MODES}, got: {signals!r}")
        self._beam_pid = beam_pid
        self._mode = signals
        self._ending = Ending(grace)
        for hook in on_shutdown:
            self._ending.add_hook(hook)
        self._liveness = Liveness(check, stale_after)
        self._handlers = SignalHandlers(self._on_signal)
        #: Runs first in the signal handler; `run` interrupts its main function from there.
        self._before_signal: Callable[[], None] = lambda: None
        self._stats = HeartbeatStats()
        self._started_at: float | None = None
        self._lifeline: lifeline.Lifeline | None = None
        self._process: ProcessWatch | None = None
        self._checker: Checker | None = None
        self._wake: WakePipe | None = None
        # Appending to a deque takes no lock that a signal handler could find taken.
        self._requests: deque[int] = deque()
        self._finishing = False
        self._stopping = False
        self._stop_handled = threading.Event()

    def start(self) -> HeartbeatClient:
        """Adopts the lifeline and starts to answer.

        Raises `RuntimeError` when the process has a client already or this one was started
        before, `ValueError` when `SNAKEPIT_LIFELINE_FD` does not name a socket.
        """
        global _active
        with _lock:
            if self._started_at is not None:
                raise RuntimeError("this HeartbeatClient was started before")
            if _active is not None:
                raise RuntimeError("this process has a HeartbeatClient already")
            try:
                self._handlers.install(self._mode)
                self._lifeline = lifeline.adopt()
                if self._lifeline is None and self._beam_pid is not None:
                    self._process = ProcessWatch(self._beam_pid)
                self._wake = WakePipe()
                if self._liveness.check is not None:
                    self._checker = Checker(self._liveness, self._nudge)
                self._liveness.touch()
                self._stats.lifeline = self._lifeline is not None
                self._started_at = time.monotonic()
                # Before the thread: once a ping is answered, a signal has to find the client here.
                _active = self
                atexit.register(self._ending.wait_out)
                threading.Thread(target=self._watch, name="snakepit-heartbeat", daemon=True).start()
            except BaseException:
                _active = None
                atexit.unregister(self._ending.wait_out)
                self._release()
                self._stop_checker()
                raise
        return self

    def stop(self) -> None:
        """Stops answering, lets go of the lifeline and the signals, and leaves the process alive.

        Runs no hooks. Does nothing when the end of the process has begun.
        """
        global _active
        if _active is not self or self._ending.begun.is_set():
            return
        self._stopping = True
        self._nudge()
        self._stop_handled.wait()
        if self._ending.begun.is_set():
            return
        with _lock:
            if _active is self:
                self._release()
                _active = None
        self._stop_checker()
        atexit.unregister(self._ending.wait_out)

    def shutdown(self, status: int = 0) -> None:
        """Begins the end of this process, with exit status `status`, and returns at once."""
        if not (isinstance(status, int) and 0 <= status <= 255):
            raise ValueError(f"expected status to be from 0 to 255, got: {status!r}")
        if _active is not self:
            raise RuntimeError("this HeartbeatClient is not running")
        self._requests.append(status)
        self._nudge()

    def on_shutdown(self, hook: Hook) -> Hook:
        """Adds a hook and returns it, so that it can be used as a decorator."""
        self._ending.add_hook(hook)
        return hook

    def touch(self) -> None:
        """Says that the work goes on: see `stale_after`."""
        self._liveness.touch()

    @property
    def stopping(self) -> bool:
        """Whether the end of this process has begun."""
        return self._ending.begun.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the end of this process has begun; `False` after `timeout` seconds."""
        return self._ending.begun.wait(timeout)

    def get_stats(self) -> HeartbeatStats:
        """What has been seen and done so far."""
        stats = self._stats.copy()
        if self._started_at is not None:
            stats.uptime_ms = int((time.monotonic() - self._started_at) * 1000)
        return stats

    def __enter__(self) -> HeartbeatClient:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _nudge(self) -> None:
        wake = self._wake
        if wake is not None:
            wake.wake(0)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # Between any two bytecodes of the main thread: no locks here, and no new threads.
        if _active is not self:
            # Stopped by another thread, which could not put the old handler back.
            self._handlers.restore()
            signal.raise_signal(number)
            return
        self._before_signal()
        self._requests.append(STATUS[number])
        self._nudge()

    def _watch(self) -> None:
        try:
            self._loop(block_signals())
        except BaseException:
            report("the heartbeat thread failed")
            os._exit(_STATUS_BROKEN)
        self._stop_handled.set()

    def _loop(self, mask: set[int]) -> None:
        wake, line, process = self._wake, self._lifeline, self._process
        assert wake is not None
        poll = select.poll()
        poll.register(wake.reader, select.POLLIN)
        if process is not None and process.fd is not None:
            poll.register(process.fd, select.POLLIN)
        while True:
            if line is not None:
                poll.register(line.fd, select.POLLIN | (select.POLLOUT if line.wants_write else 0))
            events = {fd for fd, _ in poll.poll(self._timeout_ms())}
            self._ending.enforce()
            if wake.reader in events:
                wake.drain()
            while self._requests:
                self._ending.begin(self._requests.popleft(), mask)
            if self._finishing:
                self._ending.start_hooks(mask)
            if self._stopping:
                if not self._ending.begun.is_set():
                    return
                self._stop_handled.set()
            if line is not None:
                if self._checker is not None:
                    for timestamp, passed in self._checker.verdicts():
                        self._answer(line, timestamp, passed)
                if line.fd in events and not self._serve(line):
                    poll.unregister(line.fd)
                    line = None
                    self._ending.begin(STATUS_BEAM_GONE, mask)
            if process is not None and process.gone():
                if process.fd is not None:
                    poll.unregister(process.fd)
                process = None
                self._ending.begin(STATUS_BEAM_GONE, mask)

    def _timeout_ms(self) -> int | None:
        seconds = self._ending.remaining()
        if self._process is not None and self._process.fd is None:
            seconds = POLL_SECONDS if seconds is None else min(seconds, POLL_SECONDS)
        # Rounded up: a deadline that is half a millisecond away must not become a busy loop.
        return None if seconds is None else int(seconds * 1000) + 1

    def _serve(self, line: lifeline.Lifeline) -> bool:
        """Reads and answers; `False` when the lifeline has closed."""
        line.flush()
        lines = line.receive()
        if lines is None:
            return False
        for text in lines:
            timestamp = protocol.parse_ping(text)
            if timestamp is None:
                self._stats.lines_ignored += 1
                continue
            self._stats.pings_received += 1
            self._stats.last_ping_ms = protocol.now_ms()
            if not self._liveness.fresh():
                self._answer(line, timestamp, False)
            elif self._checker is None:
                self._answer(line, timestamp, True)
            elif not self._checker.ask(timestamp):
                self._stats.pongs_withheld += 1
        return True

    def _answer(self, line: lifeline.Lifeline, timestamp: bytes, alive: bool) -> None:
        if not alive:
            self._stats.pongs_withheld += 1
        elif line.send(protocol.pong(timestamp)):
            self._stats.pongs_sent += 1
        else:
            self._stats.pongs_dropped += 1

    def _finish(self) -> int | None:
        """Has the hooks called after `run`'s main function ended, and waits for them.

        Returns the exit status if the end of the process was asked for meanwhile; otherwise the
        client has stopped.
        """
        self._finishing = True
        self._nudge()
        self._ending.hooks_done.wait(self._ending.grace)
        self._ending.enforce()
        self._ending.released.set()
        self.stop()
        return self._ending.status

    def _release(self) -> None:
        self._handlers.restore()
        for owned in (self._lifeline, self._process, self._wake):
            if owned is not None:
                owned.close()
        self._lifeline = self._process = self._wake = None

    def _stop_checker(self) -> None:
        if self._checker is not None:
            self._checker.stop()

    def _forget(self) -> None:
        """Leaves everything to the process that this one was forked from."""
        # Only what takes no lock: one that another thread held at the fork stays held here.
        self._release()
        atexit.unregister(self._ending.wait_out)


# Held while descriptors come and go, and over each fork, so that no child is made with a copy of
# the lifeline that it does not know of. Reentrant: a signal handler may fork.
_lock = threading.RLock()
_active: HeartbeatClient | None = None
_forking_pid: int | None = None
_forking_mask: set[int] | None = None
_forked_from: int | None = None


def forked_from() -> int | None:
    """The process that this one was forked from, or `None` if it was not forked in Python."""
    return _forked_from


def _before_fork() -> None:
    global _forking_pid, _forking_mask
    _lock.acquire()
    _forking_pid = os.getpid()
    # A SIGTERM that finds the child with the client's handlers would be lost when they go. Blocked,
    # it waits, and then does to the child what it would have done without a client.
    _forking_mask = None if _active is None else block_signals()


def _after_fork_in_parent() -> None:
    mask = _forking_mask
    _lock.release()
    if mask is not None:
        restore_mask(mask)


def _after_fork_in_child() -> None:
    global _lock, _active, _forked_from
    _forked_from = _forking_pid
    # The thread that held the old one may not exist here.
    _lock = threading.RLock()
    client, _active = _active, None
    if client is not None:
        client._forget()
    if _forking_mask is not None:
        restore_mask(_forking_mask)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
