"""The worker's side of Snakepit: answers heartbeats and ends when the BEAM is gone.

Nothing here needs more than the standard library, and importing it loads neither `typing`,
`logging`, `socket` nor `asyncio`: a pool starts a hundred interpreters at once.
"""

from __future__ import annotations

from .calls import Atom, call, send
from .channel import ElixirError
from .heartbeat import HeartbeatClient
from .parent import watch_parent
from .servicer import HeartbeatServicer
from .stats import HeartbeatStats
from .worker import run

__all__ = [
    "Atom",
    "ElixirError",
    "HeartbeatClient",
    "HeartbeatServicer",
    "HeartbeatStats",
    "call",
    "run",
    "send",
    "watch_parent",
]
