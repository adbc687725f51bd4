"""A server of the Model Context Protocol with one tool, and without a library: one line is one message."""

import json
import subprocess
import sys


def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


helper = subprocess.Popen(["sleep", "3600"])

for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message["method"]
    if number is None:
        # What a client notifies of is not answered.
        print("the client says", method, file=sys.stderr, flush=True)
    elif method == "initialize":
        say(id=number, result={
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "counter", "version": "1.0.0"},
        })
    elif method == "tools/call":
        say(method="notifications/message", params={"level": "info", "data": "counting"})
        text = str(len(message["params"]["arguments"]["text"].split()))
        say(id=number, result={"content": [{"type": "text", "text": text}]})
    elif method == "helper":
        say(id=number, result={"pid": helper.pid})
    else:
        say(id=number, error={"code": -32601, "message": f"no method {method}"})
