"""Measures from outside, by /proc and the file system alone."""

import os

import proc

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid):
    """Bytes of memory in use; None if it is gone."""
    fields = proc.read(pid, "statm").split()
    return int(fields[1]) * PAGE if fields else None


def count(pid, what):
    """How many entries there are in this directory of its; None if it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/{what}"))
    except OSError:
        return None


def of_process(prefix, identity):
    """Memory, descriptors and threads of one very process; nothing if it is gone."""
    if identity is None or not proc.alive(identity):
        return {}
    pid = identity[0]
    values = {f"{prefix}_rss": resident(pid), f"{prefix}_fds": count(pid, "fd"), f"{prefix}_threads": count(pid, "task")}
    # Gone meanwhile, and perhaps somebody else's pid.
    return values if proc.alive(identity) and None not in values.values() else {}


def zombies(parents):
    """How many children of these wait to be reaped."""
    found = (proc.look_up(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return sum(1 for one in found if one and one.parent in parents and one.state == "Z")


def disk(directory):
    """Bytes and files below a directory, and the largest file of each kind that a run has."""
    sizes = {}
    total = files = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                size = os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
            total, files = total + size, files + 1
            if name in ("journal", "ledger.dets", "adopted", "guardian.log"):
                key = "disk_" + name.replace(".", "_")
                sizes[key] = max(size, sizes.get(key, 0))
    return {"disk_bytes": total, "disk_files": files, **sizes}
