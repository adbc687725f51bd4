"""The process table as /proc shows it, and signals that reach one very process or nobody."""

import os
import select
import signal
import time
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """Pid and start time are who it is; the rest is how it was when it was looked at."""

    pid: int
    start: int
    name: str
    state: str
    parent: int
    group: int

    @property
    def identity(self):
        return (self.pid, self.start)


def ticks():
    """Now, as start times are counted."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)


def read(pid, what):
    # Not through `open`, which takes three times as long, and there are thousands of these.
    try:
        file = os.open(f"/proc/{pid}/{what}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(file, 65536):
            parts.append(part)
            if what == "stat":
                break
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(file)


def look_up(pid):
    """The process, or None."""
    line = read(pid, "stat")
    if not line:
        return None
    # The name may contain anything, so count from its end.
    opened, closed = line.index(b"("), line.rindex(b")")
    rest = line[closed + 2 :].split()
    name = line[opened + 1 : closed].decode(errors="replace")
    return Process(pid, int(rest[19]), name, rest[0].decode(), int(rest[1]), int(rest[2]))


def table():
    """Every process that runs, by pid."""
    found = (look_up(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process and running(process)}


def running(process):
    if process.state not in "ZX":
        return True
    # Its first thread has ended; others may go on.
    try:
        threads = os.listdir(f"/proc/{process.pid}/task")
    except OSError:
        return False
    states = (read(process.pid, f"task/{thread}/stat").rpartition(b") ")[2][:1] for thread in threads)
    return any(state not in (b"", b"Z", b"X") for state in states)


def alive(identity):
    """The process as it is now; None if it has ended, whoever has its pid today."""
    process = look_up(identity[0])
    return process if process and process.start == identity[1] and running(process) else None


def command(pid):
    return read(pid, "cmdline")


def environment(pid):
    return read(pid, "environ")


def directory(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def describe(process):
    line = command(process.pid).replace(b"\0", b" ").decode(errors="replace").strip()
    return (
        f"pid {process.pid} start {process.start} state {process.state} parent {process.parent} "
        f"group {process.group} {process.name}: {line[:120]}"
    )


def send(identity, number):
    """Signals this very process. Whether it was there."""
    try:
        handle = os.pidfd_open(identity[0])
    except ProcessLookupError:
        return False
    try:
        # Order: the handle first. If the start time is right afterwards, the handle is of the right one.
        if not alive(identity):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def end(identities, patience=10.0):
    """Kills all of these and waits for them. Who is left."""
    handles = {}
    for identity in identities:
        try:
            handle = os.pidfd_open(identity[0])
        except ProcessLookupError:
            continue
        if alive(identity):
            handles[identity] = handle
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            except ProcessLookupError:
                pass
        else:
            os.close(handle)
    deadline = time.monotonic() + patience
    left = []
    for identity, handle in handles.items():
        if not select.select([handle], [], [], max(0, deadline - time.monotonic()))[0]:
            left.append(identity)
        os.close(handle)
    return left
