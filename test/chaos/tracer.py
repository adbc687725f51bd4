"""`strace` on a process or some of its threads: it counts system calls and strikes at the one it is told to."""

import collections
import os
import re
import select
import subprocess
import time

import proc
from world import Broken

CALL = re.compile(r"^(?:(\d+) +)?(\w+)\(")
PATIENCE = 10


class Tracer:
    """From `with` on it is attached; at the end of it it lets go, if what it traced is still there."""

    def __init__(self, output, pids, arguments=(), threads=False):
        self.output = output
        line = ["strace", "-o", output, *arguments, *(["-f"] if threads else [])]
        for pid in pids:
            line += ["-p", str(pid)]
        self.line = line
        self.traced = [proc.look_up(pid).identity for pid in pids if proc.look_up(pid)]
        self.awaited = len(pids)

    def __enter__(self):
        # In a session of its own: Ctrl-C is not for it, and it must not be taken for part of a round.
        self.process = subprocess.Popen(
            self.line, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self.await_attached()
        except BaseException:
            self.let_go()
            raise
        return self

    def await_attached(self):
        said = b""
        deadline = time.monotonic() + PATIENCE
        while said.count(b" attached") < self.awaited:
            ready, _, _ = select.select([self.process.stderr], [], [], max(0, deadline - time.monotonic()))
            more = os.read(self.process.stderr.fileno(), 4096) if ready else b""
            said += more
            if not more:
                raise Broken(f"{' '.join(self.line)}: {said.decode(errors='replace').strip() or 'does not attach'}")

    def __exit__(self, *_):
        self.let_go()

    def let_go(self):
        # Ends by itself with what it traces, and says so first. From what lives it detaches.
        if any(proc.alive(one) for one in self.traced):
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()

    def text(self):
        with open(self.output, errors="replace") as file:
            return file.read()

    def struck(self):
        """Whether the call that was to be struck came."""
        text = self.text()
        return any(word in text for word in ("+++ killed by SIGKILL +++", "(INJECTED)", "(DELAYED)"))

    def calls(self):
        """How often each call was made, by thread (None where there is only one) and name."""
        found = collections.Counter()
        for line in self.text().splitlines():
            match = CALL.match(line)
            if match:
                found[(int(match[1]) if match[1] else None, match[2])] += 1
        return found


def permitted():
    """Whether processes may be traced here: None, or why not."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        with Tracer(os.devnull, [child.pid]):
            return None
    except (Broken, OSError) as error:
        return str(error)
    finally:
        child.kill()
        child.wait()
