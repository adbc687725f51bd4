"""The service `grpc.health.v1.Health`, without the package `grpcio-health-checking`."""

from __future__ import annotations

import importlib

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection

SERVICE = "grpc.health.v1.Health"

_SERVING, _NOT_SERVING = 1, 2


class Health:
    """Answers `Check` for the server as a whole, and for each of its services by name."""

    def __init__(self, services: Collection[str]) -> None:
        self._grpc = importlib.import_module("grpc")
        self._services = services
        self.serving = False

    def handler(self) -> Any:
        """The handler of the service, for a `grpc.Server`."""
        check = self._grpc.unary_unary_rpc_method_handler(self._check)
        return self._grpc.method_handlers_generic_handler(SERVICE, {"Check": check})

    def _check(self, request: bytes, context: Any) -> bytes:
        service = b""
        try:
            for field, content in wire.fields(request):
                if field == 1 and isinstance(content, bytes):
                    service = content
        except wire.Malformed as error:
            context.abort(self._grpc.StatusCode.INVALID_ARGUMENT, str(error))
        name = service.decode(errors="replace")
        if name and name not in self._services:
            context.abort(self._grpc.StatusCode.NOT_FOUND, f"no service {name!r}")
        return wire.integer(1, _SERVING if self.serving else _NOT_SERVING)
