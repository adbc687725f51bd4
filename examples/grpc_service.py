"""A gRPC service that Snakepit supervises: ten lines."""

from snakepit_bridge.grpc import Server

server = Server()

@server.command
def ping(msg="pong"):
    return {"msg": msg}

@server.command
def count(to):
    for n in range(to):
        yield {"n": n}

server.run()
