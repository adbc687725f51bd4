"""What the children of multiprocessing do in the tests. Importable, so that spawn finds it."""

from __future__ import annotations

import os
import time
from typing import Any


def describe(connection: Any) -> None:
    """Says what this child has of its parent's, then waits for the end of the connection."""
    connection.send((os.getpid(), os.environ.get("SNAKEPIT_LIFELINE_FD"), descriptors()))
    try:
        connection.recv()
    except EOFError:
        pass


def descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            pass
    return found


def start_client(connection: Any) -> None:
    """Starts a client as a careless program would: in every process."""
    from snakepit_bridge import HeartbeatClient

    client = HeartbeatClient().start()
    connection.send((client.get_stats().lifeline, os.environ.get("SNAKEPIT_LIFELINE_FD")))
    connection.close()


def watched() -> None:
    """Ends with its parent, and says that it is there."""
    from snakepit_bridge import watch_parent

    watch_parent(on_shutdown=[lambda: os.write(1, b"gone\n")])
    os.write(1, b"watching\n")
    time.sleep(60)
