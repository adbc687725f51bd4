"""Pings the server once a line, and answers each line with what came back.

In an application this would be your Elixir gRPC client; Snakepit itself has none.
"""

import sys
import time

import grpc

channel = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")
ping = channel.unary_unary("/snakepit.Heartbeat/Ping")

for _line in sys.stdin:
    try:
        answer = ping(b"PING:%d" % (time.time() * 1000), timeout=2).decode()
    except grpc.RpcError as error:
        answer = f"ERROR:{error.code().name}"
    print(answer, flush=True)
