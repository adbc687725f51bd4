"""What is measured, and how much of it may come in an hour.

A leak grows with the work. The load starts 30 to 60 processes a second, at least 100,000 an hour, so what leaks
once in a thousand starts comes a hundred times an hour. `per_hour` is below that for whatever is counted,
and for memory is some ten to two hundred bytes for each start.

`least` is for short soaks: what has to come in the time that was judged before it counts. A module that is
loaded when it is first needed brings a few atoms, the BEAM gets memory from the system in pieces of up to
8 MiB, and what happens once says nothing about an hour.
"""

from typing import NamedTuple, Optional

MIB = 1024 * 1024


class Quantity(NamedTuple):
    key: str
    title: str
    unit: str = ""
    scale: float = 1
    # None: shown, and not judged.
    per_hour: Optional[float] = None
    least: float = 0
    # The guardian is another process after it was killed.
    life: str = "beam"


def counted(key, title, least=6, **more):
    return Quantity(key, title, per_hour=60, least=least, **more)


def memory(key, title, per_hour, least, **more):
    return Quantity(key, title, "MiB", MIB, per_hour * MIB, least * MIB, **more)


ALL = [
    memory("beam_rss", "BEAM: resident memory", 24, 8),
    memory("memory_total", "BEAM: memory in use", 12, 3),
    memory("memory_processes", "BEAM: memory of processes", 8, 2),
    memory("memory_binary", "BEAM: memory of binaries", 8, 2),
    memory("memory_ets", "BEAM: memory of ETS tables", 1, 0.25),
    counted("ets_entries", "BEAM: ETS entries", 12),
    counted("ets_tables", "BEAM: ETS tables"),
    counted("atoms", "BEAM: atoms", 20),
    counted("beam_processes", "BEAM: Erlang processes", 12),
    counted("ports", "BEAM: ports"),
    counted("beam_fds", "BEAM: descriptors", 12),
    counted("beam_threads", "BEAM: threads"),
    memory("guardian_rss", "guardian: resident memory", 2, 0.5, life="guardian"),
    counted("guardian_fds", "guardian: descriptors", 12, life="guardian"),
    counted("guardian_threads", "guardian: threads", life="guardian"),
    counted("os_processes", "OS processes of the soak", 12),
    counted("zombies", "zombies"),
    memory("disk_bytes", "data directory: size", 1, 0.125),
    counted("disk_files", "data directory: files", 12),
    Quantity("starts_per_s", "load: starts per second"),
    Quantity("command_ms", "cmd/3: mean time", "ms"),
]

JUDGED = [one for one in ALL if one.per_hour is not None]
