"""For children that a worker makes itself: ends them when their parent is gone."""

from __future__ import annotations

import os
import sys

from .ending import STATUS_BEAM_GONE
from .heartbeat import HeartbeatClient, forked_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable


def watch_parent(
    *, on_shutdown: Iterable[Callable[[], object]] = (), grace: float = 2.0
) -> HeartbeatClient:
    """Ends this process when the one that made it is gone, as `HeartbeatClient` would.

    For the children of `multiprocessing`, of any start method, which otherwise live on when a
    worker is killed: `ProcessPoolExecutor(initializer=watch_parent)`. A child of the fork server
    watches the process that asked for it, since the server itself lives as long as its children.

    Leaves signals alone: `Process.terminate` works as before.
    """
    process = sys.modules.get("multiprocessing.process")
    relative = None if process is None else process.parent_process()
    if relative is not None:
        parent = relative.pid
    else:
        parent = forked_from() or os.getppid()
    client = HeartbeatClient(
        beam_pid=parent, on_shutdown=on_shutdown, grace=grace, signals="never"
    ).start()
    # The parent may have died before the watch began, and its pid may be somebody else's by now.
    is_direct = relative is None or forked_from() == parent
    if (is_direct and os.getppid() != parent) or (relative is not None and not relative.is_alive()):
        client.shutdown(STATUS_BEAM_GONE)
    return client
