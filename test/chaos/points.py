"""Where `script/chaos --strace` strikes: an operation, who makes the call, its name, the how manieth, and how.

`spawn:guardian:clone:3` kills the guardian at its third `clone` of a spawn, before the kernel has carried it
out. `spawn:guardian:clone:3:EAGAIN` lets that one fail, `spawn:guardian:clone:1+:EAGAIN` all from the first on.
`spawn:guardian:clone:3:delay_enter` has the kernel carry it out a tenth of a second later, and
`spawn:guardian:clone:3:delay_exit` return from it as late: whoever waits for nobody gets ahead meanwhile. With `+kill` behind it the other of BEAM
and guardian is killed while the call takes so long.
"""

import random

from typing import NamedTuple, Optional

DESCRIPTOR = ["EMFILE", "ENOMEM"]
STORAGE = ["ENOSPC", "EIO"]
FORK = ["EAGAIN", "ENOMEM"]

# What the kernel may answer. Calls of which it is not said here do not fail for want of anything.
FAULTS = {
    **dict.fromkeys(["clone", "clone3", "fork", "vfork"], FORK),
    **dict.fromkeys(
        ["socket", "socketpair", "pipe", "pipe2", "accept4", "epoll_create1", "eventfd2", "timerfd_create",
         "signalfd4", "memfd_create", "pidfd_open", "open"],
        DESCRIPTOR,
    ),
    "openat": ["EMFILE", "ENOMEM", "EIO"],
    **dict.fromkeys(["fsync", "fdatasync", "rename", "renameat", "renameat2", "mkdir", "mkdirat"], STORAGE),
    **dict.fromkeys(["write", "writev", "pwrite64"], STORAGE),
    **dict.fromkeys(["unlink", "unlinkat", "ftruncate", "read", "pread64", "readv"], ["EIO"]),
    **dict.fromkeys(["getdents64", "statx", "newfstatat"], ["EIO", "ENOMEM"]),
    **dict.fromkeys(["sendmsg", "sendto"], ["EAGAIN", "ENOMEM"]),
    "connect": ["EAGAIN"],
    "epoll_ctl": ["ENOMEM", "ENOSPC"],
    "name_to_handle_at": ["ENOMEM"],
    "execve": ["EAGAIN", "ENOMEM", "EMFILE", "EIO"],
    "chdir": ["EIO", "ENOMEM"],
    **dict.fromkeys(["mmap", "brk", "mremap"], ["ENOMEM"]),
}
# How a call can take long, as strace calls it, and how long it takes then, in microseconds.
DELAYS = ["delay_enter", "delay_exit"]
# And how somebody else dies meanwhile: of the BEAM and the guardian the one that is not delayed.
KILL = "+kill"
# Whoever reaps does so because the other one is dead; what is registered dies with the guardian.
WITH_ONE_ALONE = {"reaping", "registration"}
DELAY_US = 100_000
# From these nobody returns, or not as who was delayed.
NEVER_RETURN = {"exit", "exit_group", "execve", "rt_sigreturn"}
# These fail so on files; pipes and sockets have other troubles.
ON_FILES = {"write", "writev", "pwrite64", "read", "pread64", "readv"}
# A BEAM without memory ends, and that is OTP's own decision. It is killed often enough here. And if it
# cannot watch a descriptor it drops it: its standard input first, over which it is told what to do.
ENDS_THE_BEAM = {"mmap", "brk", "mremap", "epoll_ctl"}
# Only after these is anything outside the process another: to die before any call in between is the same.
NOTICED = {
    "write", "writev", "pwrite64", "sendto", "sendmsg", "connect", "shutdown", "rename", "renameat", "renameat2",
    "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "fsync", "fdatasync", "ftruncate", "flock", "fchmodat",
    "chmod", "kill", "tgkill", "pidfd_send_signal", "clone", "clone3", "vfork", "fork", "execve",
}
# How a BEAM waits for work, and keeps its clock. What they are called by has nothing to do with what it does.
IDLING = {
    "futex", "sched_yield", "epoll_wait", "epoll_pwait", "ppoll", "poll", "pselect6", "timerfd_settime", "select",
    "restart_syscall", "rt_sigtimedwait", "clock_nanosleep",
}
# Threads of a BEAM that run none of our code: they wait, wake others, and pass on bytes.
SERVANTS = ("aux", "poll", "sys_sig", "sys_msg", "async", "child_wait", "beam.smp")


class Point(NamedTuple):
    operation: str
    who: str
    call: str
    count: str
    fault: Optional[str] = None

    def __str__(self):
        return ":".join(filter(None, self))

    @classmethod
    def parse(cls, text):
        parts = text.split(":")
        if len(parts) not in (4, 5):
            raise ValueError(f"{text!r} is no point: operation:who:call:count or operation:who:call:count:error")
        return cls(*parts)

    @property
    def target(self):
        """`guardian`, `child` or `beam`, whichever thread of it."""
        return self.who.partition("/")[0]

    @property
    def thread(self):
        return self.who.partition("/")[2]

    @property
    def only_delays(self):
        """Whether it only takes time, so that all has to go as well as ever."""
        return self.fault in DELAYS

    @property
    def delay(self):
        """How the call is delayed, if it is."""
        return self.fault.removesuffix(KILL) if is_delay(self.fault) else None

    @property
    def kills(self):
        """Whether somebody is killed while the call takes long."""
        return is_delay(self.fault) and self.fault.endswith(KILL)

    def on_files(self):
        """Whether only calls on the files of the library count."""
        return self.fault is not None and not self.delay and self.call in ON_FILES

    def injection(self):
        how = f"error={self.fault}" if self.fault else "signal=KILL"
        how = f"{self.delay}={DELAY_US}" if self.delay else how
        return ["-e", f"trace={self.call}", "-e", f"inject={self.call}:{how}:when={self.count}"]


class Row(NamedTuple):
    """The points that differ in their count alone."""

    operation: str
    who: str
    call: str
    fault: Optional[str]
    seen: int
    every: bool
    # These counts alone, where not all are wanted.
    only: Optional[tuple] = None

    def points(self):
        """In order; whoever strikes stops at the first that does not come."""
        if self.only is not None:
            yield from map(self.point, self.only)
            return
        if self.from_the_first():
            yield self.point("1+")
        for count in counts(self.every):
            # Those of two runs differ a little, but not without end.
            if count > 2 * self.seen + 8:
                return
            yield self.point(str(count))

    def point(self, count):
        return Point(self.operation, self.who, self.call, count, self.fault)

    def from_the_first(self):
        """Whether all calls are struck at once, too. If each took long, nothing would come to an end."""
        return bool(self.fault) and not is_delay(self.fault)

    def expected(self):
        """About how many there are."""
        return len(self.likely())

    def likely(self):
        """The counts that come, if nothing is otherwise than it was."""
        if self.only is not None:
            return list(self.only)
        found = [str(count) for count in takewhile_at_most(self.seen, counts(self.every))]
        return ["1+"] * self.from_the_first() + found


def counts(every):
    """1, 2, 3 ... or, of calls that are made over and over, the first few and ever fewer."""
    count = 1
    while True:
        yield count
        count += 1 if every or count < 4 else max(1, count // 2)


def takewhile_at_most(limit, numbers):
    for number in numbers:
        if number > limit:
            return
        yield number


def is_delay(fault):
    return fault is not None and fault.removesuffix(KILL) in DELAYS


def sample(found, limit, seed):
    """So many of all points, the same each time for the same seed, as rows. Each row has one before any has two,
    or they would almost all be of the few calls that are made a thousand times.
    """
    source = random.Random(f"{seed}:points")
    shuffled = [source.sample(row.likely(), row.expected()) for row in found]
    turns = [(turn, source.random(), index) for index, counts in enumerate(shuffled) for turn in range(len(counts))]
    chosen = {}
    for turn, _, index in sorted(turns)[:limit]:
        chosen.setdefault(index, []).append(shuffled[index][turn])
    return [found[index]._replace(only=tuple(chosen[index])) for index in sorted(chosen)]


def delays(operation, who, call, seen, thorough):
    """How to let a call take long that was seen so often."""
    beam = who.startswith("beam")
    if beam and (call in IDLING or not thorough and any(name in who for name in SERVANTS)):
        return
    for delay in DELAYS:
        if delay == "delay_exit" and call in NEVER_RETURN:
            continue
        for kill in [""] if operation in WITH_ONE_ALONE else ["", KILL]:
            yield Row(operation, who, call, delay + kill, seen, thorough or not beam or call in NOTICED)


def rows(operation, who, call, seen, thorough):
    """What to do about a call that was seen so often."""
    beam = who.startswith("beam")
    if beam and not thorough and any(name in who for name in SERVANTS):
        return
    if not (beam and call in IDLING):
        yield Row(operation, who, call, None, seen, thorough or not beam or call in NOTICED)
    if not (beam and call in ENDS_THE_BEAM):
        for fault in FAULTS.get(call, []):
            yield Row(operation, who, call, fault, seen, thorough)
