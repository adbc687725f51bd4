"""An adapter of the earlier Snakepit, as a service of this one."""

from snakepit_bridge.grpc import Server, current_call

MODELS = {}  # what is kept lives in the module, as before


class Adapter:
    def load_model(self, name):
        MODELS[current_call().session_id] = name
        return {"loaded": name}

    def predict(self, text):
        return {"model": MODELS.get(current_call().session_id), "length": len(text)}

    def train(self, epochs):
        for epoch in range(1, epochs + 1):
            yield {"type": "progress", "epoch": epoch}


server, adapter = Server(threads=4), Adapter()
for command in (adapter.load_model, adapter.predict, adapter.train):
    server.command(command)
server.run()
