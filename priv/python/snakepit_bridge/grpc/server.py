"""A gRPC server that Snakepit can supervise."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
from concurrent import futures

from ..heartbeat import HeartbeatClient
from ..servicer import SERVICE as HEARTBEAT
from ..servicer import HeartbeatServicer
from .commands import SERVICE as COMMANDS
from .commands import Commands
from .health import SERVICE as HEALTH
from .health import Health
from .listening import CannotListen, announce, bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

#: For `Ping`, `Check` and reflection while all commands run.
_SPARE_THREADS = 4
_MAX_MESSAGE = 4 * 1024 * 1024
#: What is left of the time to stop for the hooks and for the end of the interpreter.
_SHARE_OF_CALLS = 0.8
#: A worker without a time to stop is killed anyway.
_LEAST_GRACE = 0.1


class Server:
    """A `grpc.Server` with commands, heartbeats, health and a graceful stop.

    `threads` is how many commands run at a time; one more is refused. `check` is that of
    `HeartbeatClient`: a server that fails it is replaced. `grpc` is the `grpc.Server` itself.
    """

    def __init__(self, *, threads: int = 10, check: Callable[[], object] | None = None) -> None:
        if threads < 1:
            raise ValueError(f"expected threads to be at least 1, got: {threads!r}")
        grpc = importlib.import_module("grpc")
        max_message = int(os.environ.get("SNAKEPIT_MAX_MESSAGE", _MAX_MESSAGE))
        self.grpc = grpc.server(
            futures.ThreadPoolExecutor(threads + _SPARE_THREADS, "snakepit-grpc"),
            options=[
                # Otherwise a port that is in use is shared with whoever uses it.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_message),
                ("grpc.max_send_message_length", max_message),
            ],
        )
        #: The `--elixir-address` that it was started with, or `None`.
        self.elixir_address: str | None = None
        self.services = [HEARTBEAT, COMMANDS, HEALTH]
        self._commands = Commands(threads)
        self._health = Health(self.services)
        HeartbeatServicer(check=check).add_to_server(self.grpc)
        self.grpc.add_generic_rpc_handlers((self._commands.handler(), self._health.handler()))

    def command(self, function: Function) -> Function:
        """Makes a function a command of its name. A generator answers with a stream."""
        self._commands.add(function.__name__, function)
        return function

    def add(self, register: Callable[[Any], object]) -> None:
        """Adds a service of generated code: `add(lambda s: add_GreeterServicer_to_server(g, s))`."""
        register(_Recorder(self.grpc, self.services))

    def run(self, argv: Sequence[str] | None = None) -> None:
        """Serves until it is asked to end; the process ends with it.

        Takes `--port` (0 picks one), `--socket` (a path, or `@` for one without a file),
        `--elixir-address` and `--run-id`, and leaves other arguments to the program.
        """
        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=0)
        parser.add_argument("--socket")
        parser.add_argument("--elixir-address")
        parser.add_argument("--run-id")
        arguments, _others = parser.parse_known_args(argv)
        self.elixir_address = arguments.elixir_address
        self._reflect()
        try:
            address = bind(self.grpc, arguments.host, arguments.port, arguments.socket)
        except CannotListen as error:
            sys.exit(str(error))
        grace = max(int(os.environ.get("SNAKEPIT_STOP_TIMEOUT_MS", 2000)) / 1000, _LEAST_GRACE)
        client = HeartbeatClient(on_shutdown=[lambda: self._stop(grace * _SHARE_OF_CALLS)], grace=grace)
        client.start()
        self.grpc.start()
        self._health.serving = True
        announce(address)
        client.wait()
        # The hook runs, and ends the process when it is done.
        threading.Event().wait()

    def _stop(self, grace: float) -> None:
        self._health.serving = False
        # Calls that run may end; new ones are refused.
        self.grpc.stop(grace).wait()

    def _reflect(self) -> None:
        try:
            reflection = importlib.import_module("grpc_reflection.v1alpha.reflection")
        except ImportError:
            return
        names = [*self.services, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self.grpc)


class _Recorder:
    """A `grpc.Server` that notes the names of the services that are added."""

    def __init__(self, server: Any, services: list[str]) -> None:
        self._server = server
        self._services = services

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        for handler in handlers:
            if hasattr(handler, "service_name"):
                self._services.append(handler.service_name())
        self._server.add_generic_rpc_handlers(handlers)
