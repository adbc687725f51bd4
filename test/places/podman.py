"""Containers of podman's, whose file system is a Debian folder, and what runs in them as the host sees it."""

import os
import random
import resource
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "chaos"))
import proc  # noqa: E402

PATIENCE = 60.0
SUPERVISED = ["python3", "-B", "/snakepit/test/places/supervise.py"]
# They have the container's command line as part of their own.
TOOLS = {"podman", "conmon", "crun"}
RELEASE = ["/app/bin/shop", "start"]
# Those of the shop's sleepers that the guardian has started itself. The others are children of theirs.
LEADERS = {"1", "3", "6"}


class Broken(Exception):
    """A row could not be carried on: what was waited for did not come."""


def eventually(condition, what, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Broken(f"waited {patience:.0f} s for {what}")
        time.sleep(0.02)


def token():
    """A number of seconds that nobody else sleeps."""
    return str(random.randrange(10**10, 10**11))


class Podman:
    """The command line of podman with storage of its own; nothing of the user's is touched."""

    def __init__(self, storage, root):
        self.root = root
        self.line = [
            "podman", "--root", f"{storage}/root", "--runroot", f"{storage}/run", "--storage-driver", "vfs",
            "--cgroup-manager", "cgroupfs", "--events-backend", "none", "--runtime", "crun",
        ]
        # Podman asks for more than an ordinary root may have. Nobody may raise a hard limit without a capability.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        tasks = min(resource.getrlimit(resource.RLIMIT_NPROC)[1], 16384)
        self.limits = ["--ulimit", f"nofile={files}:{files}", "--ulimit", f"nproc={tasks}:{tasks}"]

    def call(self, *words, timeout=120, check=True):
        done = subprocess.run(
            [*self.line, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, timeout=timeout,
        )
        if check and done.returncode != 0:
            raise Broken(f"podman {words[0]}: {done.stderr.strip()}")
        return done.stdout.strip()


class Container:
    """One with the release in it. `data` is where its runs are, None for the library's own choice."""

    def __init__(self, podman, name, log, options=(), data="/data/runs", command=None, environment=None):
        self.podman = podman
        self.name = f"snakepit-{os.getpid()}-{name}"
        self.token = token()
        self.bystander = token()
        self.log = log
        self.old = set()
        self.struck = []
        self.leaders = []
        variables = {"SHOP_TOKEN": self.token, "RELEASE_DISTRIBUTION": "none", "LANG": "C.UTF-8", "ERL_CRASH_DUMP_SECONDS": "0", **(environment or {})}
        if data:
            variables["SHOP_DATA"] = data
        self.words = [
            "--name", self.name, "--network", "none", "--log-driver", "k8s-file", "--log-opt", f"path={log}",
            *[word for pair in variables.items() for word in ("--env", "=".join(pair))],
            *options, "--rootfs", f"{podman.root}:O",
        ]
        self.command = [one.replace("BYSTANDER", self.bystander) for one in command or [*SUPERVISED, "BYSTANDER"]]

    def run(self):
        limits = [] if "--ulimit" in self.words else self.podman.limits
        self.podman.call("run", "--detach", *limits, *self.words, *self.command)
        return self

    def tell(self, name):
        """Signals its first process."""
        self.podman.call("kill", "--signal", name, self.name)

    def execute(self, *line, user="0"):
        self.podman.call("exec", "--detach", "--user", user, self.name, *line)

    def stop(self):
        """As an operator does. Its exit status and how long it took."""
        begun = time.monotonic()
        self.podman.call("stop", "--time", "10", self.name)
        return self.status(), time.monotonic() - begun

    def status(self):
        return int(self.podman.call("inspect", "--format", "{{.State.ExitCode}}", self.name))

    def ended(self):
        return self.podman.call("inspect", "--format", "{{.State.Status}}", self.name) in ("exited", "stopped")

    def remove(self):
        self.podman.call("rm", "--force", "--time", "0", "--ignore", self.name, check=False)
        proc.end([one.identity for one in self.workers() + self.bystanders()])

    def workers(self):
        """Everything of its workers that runs, seen from the host."""
        mark = self.token.encode()
        return [one for one in proc.table().values() if mark in proc.command(one.pid) and one.name not in TOOLS]

    def numbers(self):
        """Which of its sleepers are there, apart from those of a BEAM that was killed."""
        return {ordinal(one) for one in sleepers(self.token) if one.identity not in self.old}

    def bystanders(self):
        return sleepers(self.bystander)

    def helper(self, name):
        """The BEAM or the guardian of today."""
        variable = f"SHOP_TOKEN={self.token}\0".encode()
        for process in proc.table().values():
            if process.name == name and process.identity not in self.old:
                if variable in proc.environment(process.pid):
                    return process
        return None

    def beam(self):
        return self.helper("beam.smp")

    def guardian(self):
        return self.helper("snakepit_guardi")

    def await_ready(self, numbers="123456"):
        """Waits until it works with every process of its workers there."""

        seen = None
        deadline = time.monotonic() + PATIENCE
        while not (self.numbers() >= set(numbers) and self.guardian()):
            beam = self.beam()
            if seen and beam is None:
                raise Broken(f"the release has ended: {self.last_words()}")
            if time.monotonic() > deadline:
                raise Broken(f"waited {PATIENCE:.0f} s for the workers: {self.last_words()}")
            seen = beam
            time.sleep(0.05)

    def last_words(self):
        """The end of what it has printed, the sentence of an error first."""
        lines = [line.strip() for line in self.printed().splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("** (")]
        return (errors or lines or ["it has printed nothing"])[-1][:300]

    def printed(self):
        """Podman writes a line for each piece that was written: time, stream, whether the line goes on, the piece."""
        text = ""
        with open(self.log, errors="replace") as file:
            for line in file:
                _, _, whole, piece = line.rstrip("\n").split(" ", 3)
                text += piece + ("\n" if whole == "F" else "")
        return text

    def kill(self, *processes):
        """All of them at one instant: none can notice the end of another, because all are stopped before."""
        new = [one for one in sleepers(self.token) if one.identity not in self.old]
        self.leaders = [one for one in new if ordinal(one) in LEADERS]
        self.struck = [one for one in self.workers() if one.identity not in self.old]
        self.old |= {one.identity for one in [*self.workers(), self.beam(), self.guardian()]}
        for process in processes:
            proc.send(process.identity, signal.SIGSTOP)
        for process in processes:
            proc.send(process.identity, signal.SIGKILL)


def words(process):
    return proc.command(process.pid).split(b"\0")[:-1]


def ordinal(sleeper):
    """Which of its container's it is. Nothing if it has ended meanwhile."""
    return b"".join(words(sleeper)[1:]).rpartition(b".")[2].decode()


def sleepers(number):
    """The processes that sleep for that many seconds, and maybe a fraction that tells which one it is."""
    prefix = number.encode()
    found = []
    for process in proc.table().values():
        line = words(process)
        if len(line) == 2 and line[0].endswith(b"sleep") and line[1].partition(b".")[0] == prefix:
            found.append(process)
    return found


def inner_pid(process):
    """The pid that it has in the innermost namespace."""
    for line in proc.read(process.pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return None
