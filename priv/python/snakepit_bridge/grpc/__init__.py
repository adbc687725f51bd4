"""gRPC servers for `Snakepit.GRPCWorker`. Needs `grpcio`, and nothing else.

    from snakepit_bridge.grpc import Server

    server = Server()

    @server.command
    def ping(msg="pong"):
        return {"msg": msg}

    server.run()
"""

from __future__ import annotations

from .commands import Call, current_call
from .server import Server

__all__ = ["Call", "Server", "current_call"]
