"""What a heartbeat client has seen and done."""

from __future__ import annotations


class HeartbeatStats:
    """Counters of one client. A copy: it does not change after it was handed out.

    `last_ping_ms` is the wall clock in milliseconds at the last ping, or `None` before the first.
    A pong is *withheld* when the liveness check says no, and *dropped* when the other side has
    not read for so long that there is no room left for it.
    """

    __slots__ = (
        "last_ping_ms",
        "lifeline",
        "lines_ignored",
        "pings_received",
        "pongs_dropped",
        "pongs_sent",
        "pongs_withheld",
        "uptime_ms",
    )

    def __init__(self) -> None:
        self.lifeline: bool = False
        self.pings_received: int = 0
        self.pongs_sent: int = 0
        self.pongs_withheld: int = 0
        self.pongs_dropped: int = 0
        self.lines_ignored: int = 0
        self.last_ping_ms: int | None = None
        self.uptime_ms: int = 0

    def as_dict(self) -> dict[str, object]:
        """All fields by name, ready for `json.dumps`."""
        return {name: getattr(self, name) for name in self.__slots__}

    def copy(self) -> HeartbeatStats:
        """These figures as they are now."""
        twin = HeartbeatStats()
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"HeartbeatStats({fields})"
