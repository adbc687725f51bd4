"""The lifeline: a connected local stream socket between this process and the BEAM.

Its number is in `SNAKEPIT_LIFELINE_FD`. Heartbeats travel over it as lines of text; its end of
file says that the BEAM is gone. Plain `os.read` and `os.write` on a non-blocking descriptor: the
`socket` module would add a tenth to the start of an interpreter and nothing else.
"""

from __future__ import annotations

import os
import stat
import sys

from .descriptors import close

VARIABLE = "SNAKEPIT_LIFELINE_FD"

#: A longer line is no ping. It is skipped up to its newline, and never kept.
MAX_LINE = 1024
#: Answers that wait for a peer that does not read. More are dropped.
MAX_PENDING = 64 * 1024
#: Reads per round, so that a flood of input cannot starve signals and deadlines.
_READS_PER_ROUND = 16
_READ_SIZE = 4096


class Lifeline:
    """This process's end of the lifeline. Never blocks."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._line = bytearray()
        self._skipping = False
        self._pending = bytearray()
        # First: from here on no program that another thread starts can inherit it.
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)

    @property
    def wants_write(self) -> bool:
        """Whether an answer waits for room in the socket."""
        return bool(self._pending)

    def receive(self) -> list[bytes] | None:
        """The complete lines that have arrived, or `None` when the other side is gone.

        A line that was too long comes as an empty one.
        """
        lines: list[bytes] = []
        for _ in range(_READS_PER_ROUND):
            try:
                data = os.read(self.fd, _READ_SIZE)
            except BlockingIOError:
                break
            except OSError:
                # A reset, or a descriptor that somebody closed: there is no lifeline any more.
                return None
            if not data:
                return None
            self._split(data, lines)
        return lines

    def _split(self, data: bytes, lines: list[bytes]) -> None:
        *complete, rest = data.split(b"\n")
        for piece in complete:
            self._extend(piece)
            lines.append(bytes(self._line))
            self._line.clear()
            self._skipping = False
        self._extend(rest)

    def _extend(self, piece: bytes) -> None:
        if self._skipping:
            return
        if len(self._line) + len(piece) > MAX_LINE:
            self._skipping = True
            self._line.clear()
        else:
            self._line += piece

    def send(self, line: bytes) -> bool:
        """Sends `line`, now or when there is room; `False` when too many are waiting."""
        if len(self._pending) + len(line) >= MAX_PENDING:
            return False
        self._pending += line + b"\n"
        self.flush()
        return True

    def flush(self) -> None:
        """Writes what the socket has room for."""
        while self._pending:
            try:
                written = os.write(self.fd, self._pending)
            except BlockingIOError:
                return
            except OSError:
                # Nobody will read it. `receive` finds the end of file and says so.
                self._pending.clear()
                return
            del self._pending[:written]

    def close(self) -> None:
        close(self.fd)


def adopt() -> Lifeline | None:
    """Takes the lifeline out of the environment, or gives `None` when there is none.

    Raises `ValueError` when the variable does not name a socket of this process.
    """
    value = os.environ.get(VARIABLE)
    if value is None:
        return None
    # What a child inherits from `os.environ` must not name a descriptor that it does not have.
    del os.environ[VARIABLE]
    if _is_multiprocessing_child():
        # It came with a copy of the parent's environment; the lifeline is the parent's.
        return None
    try:
        fd = int(value)
        is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{VARIABLE}={value!r} is not an open descriptor: {error}") from error
    if not is_socket:
        raise ValueError(f"{VARIABLE}={value!r} is not a socket")
    return Lifeline(fd)


def _is_multiprocessing_child() -> bool:
    # A child of multiprocessing has loaded this module before any code of the user's runs.
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
