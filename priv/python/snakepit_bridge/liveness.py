"""What a worker can say about itself beyond "the interpreter runs"."""

from __future__ import annotations

import threading
import time
from collections import deque

from .report import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


class Liveness:
    """Alive unless `touch` is overdue or `check` says no.

    `touch` has to be called at least every `stale_after` seconds. `check` is called once for each
    ping; a false result, an exception, or no result at all mean that it is not alive.
    """

    def __init__(
        self, check: Callable[[], object] | None = None, stale_after: float | None = None
    ) -> None:
        if check is not None and not callable(check):
            raise TypeError(f"expected check to be callable, got: {check!r}")
        if stale_after is not None and not stale_after > 0:
            raise ValueError(f"expected stale_after to be positive, got: {stale_after!r}")
        self.check = check
        self.stale_after = stale_after
        self._touched = time.monotonic()
        self._failing = False

    def touch(self) -> None:
        """Says that the work goes on."""
        self._touched = time.monotonic()

    def fresh(self) -> bool:
        """Whether `touch` is recent enough. Never blocks."""
        return self.stale_after is None or time.monotonic() - self._touched <= self.stale_after

    def passes(self) -> bool:
        """Whether `check` says yes. Takes as long as the check does."""
        if self.check is None:
            return True
        try:
            passed = bool(self.check())
        except Exception:
            # Once for a row of failures: a ping comes every other second.
            if not self._failing:
                report("the liveness check failed")
            passed = False
        self._failing = not passed
        return passed


class Checker:
    """Runs the check of a `Liveness` in a thread of its own.

    A check may hang on the very lock that a stuck worker holds. In the thread that reads the
    lifeline it would then hide the end of the BEAM.
    """

    def __init__(self, liveness: Liveness, done: Callable[[], None]) -> None:
        self._liveness = liveness
        self._done = done
        # One place: the newest ping replaces those that a slow check has not come to.
        self._asked: deque[bytes] = deque(maxlen=1)
        self._verdicts: deque[tuple[bytes, bool]] = deque()
        self._wake = threading.Event()
        self._stopped = False
        threading.Thread(target=self._run, name="snakepit-check", daemon=True).start()

    def ask(self, timestamp: bytes) -> bool:
        """Has the ping checked; `False` when it took the place of one that was not checked."""
        replaced = bool(self._asked)
        self._asked.append(timestamp)
        self._wake.set()
        return not replaced

    def verdicts(self) -> list[tuple[bytes, bool]]:
        """The pings that have been checked since the last call, and whether each passed."""
        taken = []
        while self._verdicts:
            taken.append(self._verdicts.popleft())
        return taken

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopped:
                return
            try:
                timestamp = self._asked.popleft()
            except IndexError:
                continue
            self._verdicts.append((timestamp, self._liveness.passes()))
            self._done()
