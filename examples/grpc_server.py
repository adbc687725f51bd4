"""A gRPC server with the heartbeat service of snakepit_bridge, on the port that it is given."""

import sys
from concurrent import futures

import grpc
from snakepit_bridge import HeartbeatClient, HeartbeatServicer


def main():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    HeartbeatServicer().add_to_server(server)
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    server.start()
    # Ends the process with the BEAM, and when it is asked to end.
    HeartbeatClient(on_shutdown=[lambda: server.stop(1).wait()]).start()
    print("serving", flush=True)
    server.wait_for_termination()


main()
