"""Rows of places, each with its verdict. See script/containers."""

import argparse
import ctypes
import os
import resource
import shutil
import subprocess
import sys
import time

import rows
import seccomp
from podman import Broken, Container, Podman

CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 0x4000 | 1 << 18
HYBRID = "/sys/fs/cgroup/unified"
ORDINARY = ["--user", "1234:0"]


class Skipped(Exception):
    """This machine does not allow it."""


class Stage:
    """What the containers of one row share, and what is removed after it."""

    def __init__(self, podman, name, scratch):
        self.podman = podman
        self.directory = os.path.join(scratch, name)
        self.containers = []
        shutil.rmtree(self.directory, ignore_errors=True)
        os.makedirs(self.directory)

    def container(self, name, **more):
        log = os.path.join(self.directory, f"{name}.log")
        container = Container(self.podman, name, log, **more)
        self.containers.append(container)
        return container

    def volume(self, name, owner=0, group=0, mode=0o755):
        path = os.path.join(self.directory, name)
        os.mkdir(path)
        os.chown(path, owner, group)
        os.chmod(path, mode)
        return path

    def clear(self):
        # Order: the last first, for others may be in its pid namespace.
        for container in reversed(self.containers):
            container.remove()


def on_volume(*options, owner=0, group=0, mode=0o755, way=rows.supervised, **more):
    """A row whose data directory is on a volume of the host's."""

    def row(stage):
        volume = stage.volume("data", owner, group, mode)
        return way(stage, options=[*options, "--volume", f"{volume}:/data"], **more)

    return row


def pids_limit(stage):
    version_two = "/sys/fs/cgroup/cgroup.controllers"
    if os.path.exists(version_two):
        with open(version_two) as file:
            known = "pids" in file.read().split()
    else:
        known = os.path.ismount("/sys/fs/cgroup/pids")
    if not known:
        raise Skipped("the pids controller is not mounted")
    return on_volume("--pids-limit", "400", full=True)(stage)


def system_calls(*forbidden):
    """A service of systemd's that may make the calls of @system-service but for those of some groups."""

    def row(stage):
        known = seccomp.groups()
        if not known:
            raise Skipped("no systemd-analyze, which knows what the groups of calls are")
        profile = seccomp.write(os.path.join(stage.directory, "profile.json"), known, "@system-service", forbidden)
        # Without new privileges the filter is the last thing before the program, as it is in systemd.
        options = [f"--security-opt=seccomp={profile}", "--security-opt=no-new-privileges"]
        return on_volume(*options, *ORDINARY, owner=1234)(stage)

    return row


def most_files():
    """What Docker gives containers by default, or the most that this machine allows."""
    with open("/proc/sys/fs/nr_open") as file:
        most = int(file.read())
    try:
        # Order: only raised, and only for a moment, to learn whether it may be.
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0], most))
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        return most
    except (ValueError, OSError):
        return before[1]


FILES = most_files()
ROWS = {
    "default": ("podman's default profile", on_volume()),
    "read-only": ("--read-only, one volume", on_volume("--read-only", "--read-only-tmpfs=false")),
    "user": ("--user 1234:0", on_volume(*ORDINARY, owner=1234)),
    "cap-drop": ("--cap-drop=ALL, no-new-privileges", on_volume("--cap-drop=ALL", "--security-opt=no-new-privileges")),
    "init": ("--init", on_volume("--init", way=rows.alone)),
    "pid-1": ("the BEAM is pid 1", on_volume(way=rows.alone)),
    "slow-stop": ("pid 1, six that ignore SIGTERM", rows.slow_stop),
    "recycled": ("the next container, recycled pids", rows.recycled),
    "one-volume": ("two containers, one volume", rows.one_volume),
    "pid-host": ("--pid=host", on_volume("--pid=host")),
    "pids-limit": ("--pids-limit, reached", pids_limit),
    "nofile": (f"nofile {FILES}", on_volume(f"--ulimit=nofile={FILES}:{FILES}", "--ulimit=nproc=16384:16384")),
    "one-namespace": ("one pid namespace, two volumes", rows.one_namespace),
    "fs-group": ("a volume of root:2000 2775", on_volume(*ORDINARY, "--group-add=2000", group=2000, mode=0o2775, data="/data")),
    "hidepid": ("hidepid=2", on_volume(*ORDINARY, "--security-opt=proc-opts=hidepid=2", owner=1234)),
    "system-service": ("calls of systemd's @system-service", system_calls()),
    "unprivileged": ("… without @privileged, @resources", system_calls("@privileged", "@resources")),
    "upgrade": ("default data directory, upgrade", rows.upgrade),
}


def own_mounts():
    """What podman mounts vanishes with us; and crun does not like both versions of cgroups at once."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(CLONE_NEWNS) != 0 or library.mount(b"none", b"/", None, MS_REC_PRIVATE, None) != 0:
        raise Skipped(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    if os.path.ismount(HYBRID):
        library.umount2(HYBRID.encode(), 0)


def judge(podman, name, scratch):
    """How the row came out, how many processes had to wait for a next start, and why."""
    stage = Stage(podman, name, scratch)
    try:
        complaints = ROWS[name][1](stage)
        return "FAILED" if complaints else "ok", complaints.waited, complaints
    except Skipped as reason:
        return "skipped", "-", [str(reason)]
    except Broken as reason:
        return "FAILED", "-", [str(reason)]
    finally:
        stage.clear()


def chaos(podman, rounds, seed):
    """Rounds of random life in a container; its status. A round has more processes than podman allows by default."""
    line = ["python3", "-B", "test/chaos/chaos.py", "--build", "_build/test", "--rounds", rounds, "--seed", seed]
    options = ["--rm", "--init", "--network=none", "--pids-limit=-1", "--workdir=/snakepit", *podman.limits]
    return subprocess.call([*podman.line, "run", *options, "--rootfs", f"{podman.root}:O", *line])


def main():
    parser = argparse.ArgumentParser(prog="script/containers")
    parser.add_argument("--root", help="the folder that is the containers' file system")
    parser.add_argument("--scratch", help="for storage, volumes and logs")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--chaos", metavar="ROUNDS", help="instead of rows")
    parser.add_argument("--seed", default="1")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="; ".join(ROWS))
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:14} {place}" for name, (place, _) in ROWS.items()))
        return 0
    unknown = set(options.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")

    podman = Podman(os.path.join(options.scratch, "podman"), options.root)
    try:
        own_mounts()
        podman.call("run", "--rm", "--network=none", *podman.limits, "--rootfs", f"{options.root}:O", "true")
    except (Skipped, Broken) as reason:
        print(f"skipped: containers do not work here: {reason}")
        return 0

    if options.chaos:
        return chaos(podman, options.chaos, options.seed)

    failed = False
    print(f"{'row':14} {'place':36} {'result':8} {'seconds':>7}  until restart", flush=True)
    for name in options.rows or ROWS:
        begun = time.monotonic()
        result, waited, why = judge(podman, name, os.path.join(options.scratch, "rows"))
        seconds = time.monotonic() - begun
        print(f"{name:14} {ROWS[name][0]:36} {result:8} {seconds:7.1f}  {waited}", flush=True)
        for line in why:
            print(f"{'':14} {line}", flush=True)
        failed = failed or result == "FAILED"
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
