"""Pid 1 of a container, such as s6 or supervisord would be: it outlives the release and reaps.

SIGHUP starts the release again after its end, SIGTERM is handed on and ends the container with the
release's status, SIGUSR1 takes all processes that the container may still have.
"""

import os
import signal
import sys

RELEASE = ["/app/bin/shop", "start"]
SIGNALS = {signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1}


def start(line):
    """A child that has none of our blocked signals."""
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.execvp(line[0], line)
    return pid


def reap():
    """Everybody who has ended and became ours, as (pid, status)."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def fill(bystander):
    """Starts bystanders until there is no room for another."""
    for _ in range(2000):
        try:
            start(["sleep", bystander])
        except OSError:
            return


def main():
    # Order: blocked before the first child exists, so its end is not missed.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    release, status, stopping, again = start(RELEASE), 0, False, False
    while release or not stopping:
        number = signal.sigwait(SIGNALS)
        if number == signal.SIGCHLD:
            for pid, how in reap():
                if pid == release:
                    release, status = None, os.waitstatus_to_exitcode(how)
        elif number == signal.SIGTERM:
            stopping = True
            if release:
                os.kill(release, signal.SIGTERM)
        elif number == signal.SIGHUP:
            # Of two pending signals this is the first, so the end of the last one may not be known yet.
            again = True
        elif number == signal.SIGUSR1:
            fill(sys.argv[1])
            print("there is no room for another", flush=True)
        if again and release is None:
            release, again = start(RELEASE), False
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
