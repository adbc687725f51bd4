"""Bytes that are mapped by the other side instead of being sent: sealed memory files (Linux)."""

from __future__ import annotations

import errno
import os
import time

from .codec import CodecError, MemoryRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: How long a file is kept that the BEAM has not said it has mapped: its caller has died since.
KEPT_SECONDS = 60.0

_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
#: Nobody can change it, its length or its seals.
_SEALS = 0x1 | 0x2 | 0x4 | 0x8

#: Descriptors of files that were made, and since when.
_kept: dict[int, float] = {}


def create(value: Any) -> int | None:
    """The descriptor of a file with these bytes; `None` where there are no such files."""
    make = getattr(os, "memfd_create", None)
    if make is None:
        return None
    import fcntl

    try:
        fd: int = make("snakepit", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    try:
        rest = memoryview(value).cast("B") if _contiguous(value) else memoryview(value.tobytes())
        while rest.nbytes:
            rest = rest[os.write(fd, rest) :]
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise CodecError(f"no memory for {len(value)} bytes: {error}") from error
        return None
    except BaseException:
        os.close(fd)
        raise
    _kept[fd] = time.monotonic()
    return fd


def _contiguous(value: Any) -> bool:
    return not isinstance(value, memoryview) or value.c_contiguous


def release(fds: list[int]) -> None:
    """The BEAM has mapped these."""
    for fd in fds:
        if _kept.pop(fd, None) is not None:
            os.close(fd)


def expire() -> None:
    """Lets go of what nobody has asked for in time."""
    if _kept:
        end = time.monotonic() - KEPT_SECONDS
        release([fd for fd, since in _kept.items() if since < end])


def forget() -> None:
    """In a child that was forked: these are its parent's."""
    release(list(_kept))


def open_file(pid: int, fd: int, length: int) -> memoryview:
    """What the BEAM has put into a file, read-only. Mapped as long as the view or one of its kind lives."""
    import fcntl
    import mmap

    try:
        mine = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MemoryRefused(f"cannot open a memory file of the BEAM: {error}") from error
    try:
        if fcntl.fcntl(mine, _F_GET_SEALS) & _SEALS != _SEALS:
            raise CodecError("a memory file that is not sealed")
        return memoryview(mmap.mmap(mine, length, mmap.MAP_SHARED, mmap.PROT_READ))
    finally:
        os.close(mine)
