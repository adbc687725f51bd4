"""Heartbeats over gRPC, for workers that are gRPC servers already.

The service is `snakepit.Heartbeat` with one unary method, `Ping`. Its messages are plain bytes:
`PING:<ts>` is answered with `PONG:<ts>:<now>`. A client that only knows generated messages can
send and receive `google.protobuf.StringValue` instead: the answer has the form of the request.
"""

from __future__ import annotations

import importlib
import threading
import time

from . import protocol
from .liveness import Liveness
from .stats import HeartbeatStats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

SERVICE = "snakepit.Heartbeat"
METHOD = "Ping"

#: Field 1, length-delimited: how `google.protobuf.StringValue` begins. No `PING:` does.
_STRING_VALUE = 0x0A


class HeartbeatServicer:
    """Answers `snakepit.Heartbeat/Ping`.

    It knows nothing of the lifeline: run a `HeartbeatClient` beside it to end with the BEAM.
    `check` and `stale_after` are those of `HeartbeatClient`; a worker that is not alive answers
    `UNAVAILABLE`, a request that is no ping `INVALID_ARGUMENT`. `grpcio` is imported by
    `add_to_server`, not before.
    """

    def __init__(
        self,
        *,
        check: Callable[[], object] | None = None,
        stale_after: float | None = None,
    ) -> None:
        self._liveness = Liveness(check, stale_after)
        self._stats = HeartbeatStats()
        self._started_at = time.monotonic()
        # Servers call from many threads.
        self._lock = threading.Lock()

    def add_to_server(self, server: Any) -> None:
        """Registers the service with a `grpc.server` or a `grpc.aio.server`."""
        grpc = _grpc()
        handler = grpc.unary_unary_rpc_method_handler(self._ping)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )

    def touch(self) -> None:
        """Says that the work goes on: see `HeartbeatClient`."""
        self._liveness.touch()

    def get_stats(self) -> HeartbeatStats:
        """What has been seen and done so far."""
        with self._lock:
            stats = self._stats.copy()
        stats.uptime_ms = int((time.monotonic() - self._started_at) * 1000)
        return stats

    def _ping(self, request: bytes, context: Any) -> bytes:
        text = _unwrap(request)
        timestamp = None if text is None else protocol.parse_ping(text)
        if timestamp is None:
            self._count("lines_ignored")
            context.abort(_grpc().StatusCode.INVALID_ARGUMENT, "expected PING:<timestamp>")
            raise AssertionError("abort raises")
        self._count("pings_received")
        if not (self._liveness.fresh() and self._liveness.passes()):
            self._count("pongs_withheld")
            context.abort(_grpc().StatusCode.UNAVAILABLE, "the worker does not count as alive")
        self._count("pongs_sent")
        answer = protocol.pong(timestamp)
        return answer if request is text else _wrap(answer)

    def _count(self, name: str) -> None:
        with self._lock:
            setattr(self._stats, name, getattr(self._stats, name) + 1)
            if name == "pings_received":
                self._stats.last_ping_ms = protocol.now_ms()


def _grpc() -> Any:
    # Not at the top: most workers have no grpcio, and those that have it pay for it when they use
    # it. By name: it comes without types.
    return importlib.import_module("grpc")


def _unwrap(request: bytes) -> bytes | None:
    """The text of a request: itself, or the value of a `StringValue`."""
    if not request or request[0] != _STRING_VALUE:
        return request
    length, shift, position = 0, 0, 1
    for byte in request[1:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        if byte < 0x80:
            break
    return request[position:] if len(request) - position == length else None


def _wrap(text: bytes) -> bytes:
    header = bytearray((_STRING_VALUE,))
    length = len(text)
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    header.append(length)
    return bytes(header) + text
