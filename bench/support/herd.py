"""Starts processes that do nothing, and ends when they have ended.

    herd.py COUNT:[RUN_ID] ...

Prints "ready" when all have been started. A line, or the end, of its input ends it.

Each process is a shell that reads from a pipe to which only this program could write. So however
this program ends, the pipe closes and they end too. (If they are stopped at that moment, they are
continued: by this program, or by the kernel, for which the group is then orphaned.) The kernel
reaps them, so none stays behind as a zombie.
"""

import os
import signal
import sys


def main(groups):
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    source, sink = os.pipe()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    files = [(os.POSIX_SPAWN_DUP2, source, 0), (os.POSIX_SPAWN_DUP2, nowhere, 1)]
    for group in groups:
        count, _, run_id = group.partition(":")
        start(int(count), run_id, files)

    print("ready", flush=True)
    sys.stdin.readline()
    os.close(sink)
    os.killpg(0, signal.SIGCONT)
    try:
        # With SIGCHLD ignored this returns, and fails, when the last one has gone.
        os.wait()
    except ChildProcessError:
        pass


def start(count, run_id, files):
    arguments = ["sh", "-c", "read line", "worker"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SNAKEPIT_")}
    if run_id:
        arguments += ["--run-id", run_id]
        environment["SNAKEPIT_RUN_ID"] = run_id
    defaults = [signal.SIGCHLD, signal.SIGPIPE, signal.SIGFPE]
    for _ in range(count):
        os.posix_spawn("/bin/sh", arguments, environment, file_actions=files, setsigdef=defaults)


main(sys.argv[1:])
