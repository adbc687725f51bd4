"""How the process ends: hooks once, within a grace period, whatever they do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from . import signals
from .report import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

#: The BEAM is gone. Not 0: a worker whose lifeline closes while its BEAM lives has not finished.
STATUS_BEAM_GONE = 69
#: The grace period ran out.
STATUS_OVERRUN = 1
#: What the backstop leaves to the deadline.
_BACKSTOP_SECONDS = 0.5
#: `inspect.CO_COROUTINE`, without the import of `inspect`.
_CO_COROUTINE = 0x80


class Ending:
    """The end of this process. It begins at most once, in the thread that watches.

    Hooks run in a thread of their own, in the order in which they were added, so that one that
    hangs cannot hide the deadline. When the last one has returned `unwind` is asked whether the
    main thread brings the process to its end; otherwise `os._exit` does.
    """

    def __init__(self, grace: float) -> None:
        if not grace > 0:
            raise ValueError(f"expected grace to be positive, got: {grace!r}")
        self.grace = grace
        self.status: int | None = None
        self.begun = threading.Event()
        self.hooks_done = threading.Event()
        #: Set when the main thread brings the process to its end.
        self.released = threading.Event()
        self.unwind: Callable[[], bool] = lambda: False
        self._hooks: list[Callable[[], object]] = []
        self._hooks_started = False
        self._deadline: float | None = None

    def add_hook(self, hook: Callable[[], object]) -> None:
        """Adds a hook. One that is added after the end has begun may not run."""
        if not callable(hook):
            raise TypeError(f"expected on_shutdown to be callable, got: {hook!r}")
        code = getattr(hook, "__code__", None)
        if code is not None and code.co_flags & _CO_COROUTINE:
            raise TypeError(f"on_shutdown cannot be a coroutine function: {hook!r}")
        self._hooks.append(hook)

    def begin(self, status: int, mask: set[int]) -> None:
        """Starts the countdown and the hooks. Only the first call counts."""
        if self.status is not None:
            return
        self.status = status
        self._deadline = time.monotonic() + self.grace
        self._arm_backstop()
        self.begun.set()
        self.start_hooks(mask)

    def start_hooks(self, mask: set[int]) -> None:
        """Runs the hooks in a new thread with the signal mask `mask`, once."""
        if self._hooks_started:
            return
        self._hooks_started = True
        thread = threading.Thread(
            target=self._run_hooks, args=(mask,), name="snakepit-shutdown", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # No threads left, or none allowed any more because the interpreter is ending. The
            # backstop keeps the deadline.
            self._run_hooks(mask)

    def remaining(self) -> float | None:
        """Seconds until the grace period is over, or `None` when the end has not begun."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - time.monotonic())

    def enforce(self) -> None:
        """Exits if the grace period is over."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            os._exit(STATUS_OVERRUN)

    def wait_out(self) -> None:
        """Keeps the interpreter from ending before the hooks have; they end the process."""
        if self.status is not None and not self.released.wait(self.remaining()):
            os._exit(STATUS_OVERRUN)

    def _run_hooks(self, mask: set[int]) -> None:
        signals.restore_mask(mask)
        for hook in self._hooks:
            try:
                hook()
            except BaseException:
                # `sys.exit` in a hook as well: the hooks after it have their own work to do.
                report(f"the shutdown hook {hook!r} failed")
        self.hooks_done.set()
        # Without a status it is `run` that has them called, after its main function returned.
        if self.status is None or self.unwind():
            self.released.set()
            return
        _flush()
        os._exit(self.status)

    def _arm_backstop(self) -> None:
        # The kernel's own timer, which needs no GIL: a hook that never gives it back would stop the
        # thread that keeps the deadline. Not inherited by fork, unlike the lock of `faulthandler`'s
        # timer, on which a child would hang when it exits. A program that uses SIGALRM keeps it.
        if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
            if signal.getitimer(signal.ITIMER_REAL)[0] == 0:
                signal.setitimer(signal.ITIMER_REAL, self.grace + _BACKSTOP_SECONDS)


def _flush() -> None:
    # `os._exit` would lose what was printed.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
