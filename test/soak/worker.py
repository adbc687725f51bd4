"""A Python worker with heartbeats. Answers each line; "daemon" makes it leave one behind first."""

import subprocess
import sys

from snakepit_bridge import run

sleep = ["sleep", sys.argv[1]]


def main():
    for line in sys.stdin:
        if line.strip() == "daemon":
            # Forked twice, with a session of its own and an empty environment.
            subprocess.run(["sh", "-c", "env -i setsid " + " ".join(sleep) + " >/dev/null 2>&1 &"], check=True)
        print("answer to", line.strip(), flush=True)


run(main)
