"""Counts what a round has left behind and what it has hit by mistake.

What belongs to a round is told by marks that do not depend on what is judged, and each of which is
enough: its token on the command line, its directory as the working directory, its token in the
environment, or descent from one that has a mark. A program may lose one or two of them; the programs
of a round never lose all. A bystander has the token of the bystanders, and so is told apart even if it
descends from the round.
"""

import ctypes
import os
import time

import proc

VARIABLE = "CHAOS_ROUND"
PR_SET_CHILD_SUBREAPER = 36


class Judge:
    def __init__(self, token, directory, bystander_token):
        self.token = token.encode()
        self.directory = directory
        self.bystander_token = bystander_token.encode()
        self.begun = proc.ticks()
        self.seen = {}
        self.bystanders = {}

    def look(self):
        """Everything of the round that runs now, by identity."""
        table = proc.table()
        young = {pid: one for pid, one in table.items() if one.start >= self.begun - 1}
        mine = {pid for pid, one in young.items() if self.marked(one)}
        strangers = {pid for pid in young if pid not in mine and self.bystander_token in proc.command(pid)}
        grown = True
        while grown:
            below = {pid for pid, one in young.items() if one.parent in mine} - mine - strangers
            grown = bool(below)
            mine |= below
        found = {
            young[pid].identity: young[pid]
            for pid in mine
            if pid != os.getpid() and young[pid].identity not in self.bystanders
        }
        self.seen.update(found)
        return found

    def marked(self, process):
        command = proc.command(process.pid)
        # Also if it was seen before: what a BEAM starts by a port is somebody else's from its `exec` on.
        if self.bystander_token in command:
            self.seen.pop(process.identity, None)
            return False
        return (
            process.identity in self.seen
            or self.token in command
            or proc.directory(process.pid).startswith(self.directory)
            or f"{VARIABLE}=".encode() + self.token in proc.environment(process.pid)
        )

    def spare(self, process, what):
        """Has to live from now on."""
        self.bystanders[process.identity] = what

    def await_gone(self, patience, but=lambda process: False):
        """Waits until nothing is left. What is left after `patience` seconds: the orphans."""
        deadline = time.monotonic() + patience
        while True:
            left = [one for one in self.look().values() if not but(one)]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.01)

    def hit(self):
        """The bystanders that are not as they were: the wrong kills."""
        found = []
        for identity, what in self.bystanders.items():
            process = proc.alive(identity)
            if process is None:
                found.append(f"{what}, pid {identity[0]}, is gone")
            elif process.state in "Tt":
                found.append(f"{what}, pid {identity[0]}, is stopped")
        return found

    def end_all(self):
        """Ends what the round has left, and the bystanders."""
        for _ in range(20):
            left = proc.end(list(self.look()))
            if not left and not self.look():
                break
        proc.end(list(self.bystanders))


def adopt(yes):
    """Whether what loses its parent becomes ours, or goes to init as in real life."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def bury(mine):
    """Reaps what was adopted and has ended; `mine` has pids that somebody else waits for."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in mine:
            process = proc.look_up(int(name))
            if process and process.parent == os.getpid() and process.state == "Z":
                try:
                    os.waitpid(process.pid, os.WNOHANG)
                except ChildProcessError:
                    pass
