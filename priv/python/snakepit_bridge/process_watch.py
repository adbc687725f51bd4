"""Notices that another process is gone, without a descriptor shared with it."""

from __future__ import annotations

import os
import select

from .descriptors import above_stdio, close

#: How often to look where the kernel cannot notify.
POLL_SECONDS = 0.05


class ProcessWatch:
    """Watches `pid`: by pidfd on Linux, by looking every `POLL_SECONDS` elsewhere."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_parent = os.getppid() == pid
        self.fd: int | None = None
        pidfd_open = getattr(os, "pidfd_open", None)
        if pidfd_open is not None:
            try:
                self.fd = above_stdio(pidfd_open(pid))
            except OSError:
                # An old kernel, a seccomp filter, no descriptors left, or already gone: `gone`
                # tells them apart.
                pass

    def gone(self) -> bool:
        """Whether the process has ended, reaped or not."""
        if self.fd is not None:
            poll = select.poll()
            poll.register(self.fd, select.POLLIN)
            return bool(poll.poll(0))
        if self._is_parent:
            # A dead parent that nobody has reaped still takes signal 0, but has no children.
            return os.getppid() != self._pid
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    def close(self) -> None:
        if self.fd is not None:
            close(self.fd)
