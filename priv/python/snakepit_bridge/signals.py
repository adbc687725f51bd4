"""SIGTERM and SIGINT, taken only where nobody else has."""

from __future__ import annotations

import signal
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable, Literal

    Mode = Literal["default", "always", "never"]
    Handler = Callable[[int, "FrameType | None"], None]

MODES = ("default", "always", "never")

#: The status that each signal ends the process with. SIGTERM is how a worker is asked to stop, so
#: obeying is success; 128 + 2 is what shells expect after Ctrl-C.
STATUS = {int(signal.SIGTERM): 0, int(signal.SIGINT): 130}

_DEFAULTS = {
    int(signal.SIGTERM): (signal.SIG_DFL,),
    int(signal.SIGINT): (signal.SIG_DFL, signal.default_int_handler),
}

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


class SignalHandlers:
    """The handlers that one client has installed."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._previous: dict[int, Any] = {}

    def install(self, mode: Mode) -> None:
        """Takes the signals that are at their default, or with `"always"` both.

        Python lets only the main thread do it. Elsewhere `"default"` takes none and `"always"`
        raises `ValueError`.
        """
        if mode == "never":
            return
        if threading.current_thread() is not threading.main_thread():
            if mode == "always":
                raise ValueError("signals='always' needs the main thread")
            return
        for number, defaults in _DEFAULTS.items():
            current = signal.getsignal(number)
            # An ignored SIGINT (a background job of a shell) and a handler that C code installed
            # are somebody's decision too.
            if mode == "always" or current in defaults:
                self._previous[number] = current
                signal.signal(number, self._handler)

    def taken(self) -> int | None:
        """A signal that reaches the handler for certain, if there is one."""
        for number in self._previous:
            if signal.getsignal(number) == self._handler:
                return number
        return None

    def restore(self) -> None:
        """Puts back what was there before, except where somebody has replaced the handler."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handler:
                try:
                    # `None` stands for a handler that C code installed: it cannot be put back.
                    signal.signal(number, signal.SIG_DFL if previous is None else previous)
                except ValueError:
                    # Not the main thread: the handler stays and finds a client that has stopped.
                    return
        self._previous.clear()


def block_signals() -> set[int]:
    """Blocks signals in this thread and returns the mask as it was.

    The kernel may hand a signal to any thread, but only the main one runs handlers, and it would
    sleep on. It also turns SIGPIPE, where the program has set it back to its default, into
    `EPIPE`.
    """
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    return {int(number) for number in old}


def restore_mask(mask: set[int]) -> None:
    """Sets this thread's mask, so that what it starts does not inherit blocked signals."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def interrupt_main_thread(number: int) -> None:
    """Has the main thread run its handler for `number` now, out of a system call too."""
    ident = threading.main_thread().ident
    if ident is not None:
        signal.pthread_kill(ident, number)

