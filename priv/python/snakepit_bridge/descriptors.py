"""Descriptors that belong to the client and to nobody else."""

from __future__ import annotations

import os


def above_stdio(fd: int) -> int:
    """`fd`, or a close-on-exec duplicate of it above the standard streams.

    A worker that was started with stdout closed gets 1 for the next descriptor that is opened,
    and every `write(1, ...)` in C code or in a child would then land in it.
    """
    if fd > 2:
        return fd
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def close(fd: int) -> None:
    """Closes `fd`, also when the program has done so already (`os.closerange` in a daemon)."""
    try:
        os.close(fd)
    except OSError:
        pass


class WakePipe:
    """Wakes a thread that polls. `wake` takes no lock, so signal handlers may call it."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader = above_stdio(reader)
        self._writer = above_stdio(writer)
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)

    def wake(self, byte: int) -> None:
        """Sends one byte. In a full pipe it is lost, and the reader is awake already."""
        try:
            os.write(self._writer, bytes((byte,)))
        except OSError:
            pass

    def drain(self) -> bytes:
        """What has been sent since the last call."""
        try:
            return os.read(self.reader, 512)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        close(self.reader)
        close(self._writer)
