"""A BEAM with the load in it, started from here and spoken to by lines."""

import os
import subprocess
import sys

import judge
import proc
from world import Broken, arguments, eventually, term

HERE = os.path.dirname(os.path.abspath(__file__))
BRIDGE = os.path.join(HERE, "..", "..", "priv", "python")

# Often enough that a short soak has seen many of each.
CONFIG = {
    "history": {"keep": 5}, "audit_interval_ms": 5000, "watchdog": {"grace_period_ms": 200},
    "graceful_shutdown_timeout_ms": 200, "cleanup_on_stop_timeout_ms": 200,
}
HEARTBEAT = {"ping_interval": 500, "timeout_threshold": 5000}


def plan(data, directory, token, load, leaks):
    """What the BEAM is to do: all of it, or, if it is not for `load`, only a few workers."""
    from programs import early_exit, family, leaves_a_daemon, obedient, stubborn

    sleep = f"86400.{token}"
    common = {"cd": directory.encode(), "stdio": "pipe", "packet": "line", "stop_timeout": 200}
    python = {
        **common, "cmd": arguments([sys.executable, os.path.join(HERE, "worker.py"), sleep]),
        "env": [(b"PYTHONPATH", os.path.abspath(BRIDGE).encode())], "heartbeat": HEARTBEAT,
    }
    shell = {**common, "cmd": arguments(["sh", os.path.join(HERE, "worker.sh"), sleep])}
    return {
        "config": {**CONFIG, "data_dir": data.encode()},
        "pools": [("pythons", 3, python), ("shells", 4, shell)] if load else [("shells", 2, shell)],
        "programs": [arguments(one(token)) for one in (obedient, family, stubborn, early_exit, leaves_a_daemon)],
        "actors": 7 if load else 2,
        "leaks": list(leaks),
        "token": token.encode(),
    }


class Beam:
    def __init__(self, machine, name, directory, token, what):
        self.output = os.path.join(directory, f"{name}.log")
        self.heard = 0
        self.lines = []
        path = os.path.join(directory, f"{name}.plan")
        with open(path, "w") as file:
            for key, value in what.items():
                file.write(f"{{{key},{term(value)}}}.\n")
        env = dict(os.environ, ERL_CRASH_DUMP_SECONDS="0", **{judge.VARIABLE: token})
        with open(self.output, "wb") as output:
            # A session of its own: Ctrl-C is for whoever gives the orders.
            self.process = subprocess.Popen(
                machine.erl(path), stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                cwd=directory, env=env, start_new_session=True,
            )
        self.identity = proc.look_up(self.process.pid).identity

    def tell(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Broken(f"the BEAM is gone and cannot be told {line!r}") from None

    def answer(self, beginning, patience=60):
        """The next line that begins so."""

        def found():
            self.listen()
            while self.lines:
                line = self.lines.pop(0)
                if line.startswith(beginning):
                    return line
            if self.process.poll() is not None:
                raise Broken(f"the BEAM ended with {self.process.returncode} and never said {beginning!r}")
            return None

        return eventually(found, f"the BEAM to say {beginning!r}", patience)

    def listen(self):
        with open(self.output, "rb") as file:
            file.seek(self.heard)
            said = file.read()
        whole = said[: said.rfind(b"\n") + 1]
        self.heard += len(whole)
        self.lines += whole.decode(errors="replace").splitlines()

    def guardian(self):
        """Its guardian's identity: the helper whose parent, or its parent's, is this BEAM."""
        table = proc.table()
        for one in table.values():
            parent = table.get(one.parent)
            if one.name == "snakepit_guardi" and parent and parent.name != one.name:
                if self.process.pid in (parent.pid, parent.parent):
                    return one.identity
        return None

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()

    def close(self):
        """The end of its input ends it."""
        self.process.stdin.close()
        self.process.wait()
