"""What the user's code may ask of the BEAM that runs it."""

from __future__ import annotations

from .codec import Atom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channel import Channel

__all__ = ["Atom", "call", "send"]

#: That of this process, if it is a worker of `Snakepit.Python`.
channel: Channel | None = None


def call(name: str, *args: Any) -> Any:
    """Calls a function of the application that its `:exports` lists, and returns its result.

    Raises `snakepit_bridge.ElixirError` when it fails or is not listed.
    """
    return _channel().call(name, args)


def send(name: str, *args: Any) -> None:
    """As `call`, without waiting for it. What becomes of it is logged by the BEAM."""
    _channel().control(b"s", [name, list(args)])


def _channel() -> Channel:
    if channel is None:
        raise RuntimeError("this process is no worker of Snakepit.Python")
    return channel
