"""A Python worker with heartbeats that does all it can to leave processes behind."""

import subprocess
import sys
import time

from snakepit_bridge import run

sleep = ["sleep", sys.argv[1]]


def main():
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    # Forked twice, with a session of its own and an empty environment.
    subprocess.run(["sh", "-c", "env -i setsid " + " ".join(sleep) + " &"], check=True)
    while True:
        time.sleep(1)


run(main)
