"""The text of a heartbeat: `PING:<ts>` is answered with `PONG:<ts>:<now>`.

`<ts>` belongs to the sender and comes back as it was. `<now>` is this process's wall clock in
milliseconds.
"""

from __future__ import annotations

import time

PING = b"PING:"


def now_ms() -> int:
    """The wall clock in whole milliseconds."""
    return time.time_ns() // 1_000_000


def parse_ping(line: bytes) -> bytes | None:
    """The timestamp of a ping, or `None` for any other line."""
    return line[len(PING) :] if line.startswith(PING) else None


def pong(timestamp: bytes) -> bytes:
    """The answer to the ping that carried `timestamp`, without the newline."""
    return b"PONG:%s:%d" % (timestamp, now_ms())
