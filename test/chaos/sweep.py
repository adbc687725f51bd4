"""`script/chaos --strace`: dies and fails at each system call of a few operations, and judges each time."""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import points
import tracer
from progress import Progress
from world import Machine

# Who makes system calls in which operation.
OPERATIONS = {
    "spawn": ["guardian", "child", "beam"],
    "stop": ["guardian", "beam"],
    "shutdown": ["guardian", "beam"],
    "registration": ["beam"],
    "reaping": ["guardian", "beam"],
}


class Player:
    """A stage in a process of its own. One thread of ours at a time talks to it."""

    def __init__(self, machine, name, namespace):
        self.scratch = os.path.join(machine.scratch, name)
        os.makedirs(self.scratch, exist_ok=True)
        here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chaos.py")
        line = [*namespace, sys.executable, "-B", here, "--stage", json.dumps([self.scratch, machine.paths])]
        line += ["--build", machine.build]
        # Ctrl-C is for us alone; what it means for them we tell them.
        self.process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def ask(self, word, point):
        try:
            self.process.stdin.write(f"{word} {point}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except (BrokenPipeError, ValueError):
            answer = ""
        if not answer:
            raise EOFError
        return json.loads(answer)

    def end(self):
        """Told that nobody asks any more, it cleans up and ends."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()
        self.process.stdout.close()


def namespace():
    """The words in front of a command that give it a pid namespace; none where that is not permitted."""
    line = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    for words in (line, [*line, "--user", "--map-root-user"]):
        try:
            if subprocess.run([*words, "true"], stderr=subprocess.DEVNULL).returncode == 0:
                return words
        except OSError:
            break
    return []


class Sweep:
    def __init__(self, machine, options):
        self.machine = machine
        self.options = options
        self.namespace = namespace()
        self.rows = queue.Queue()
        self.lock = threading.Lock()
        self.stopping = False
        self.counts = {"points": 0, "struck": 0, "orphans": 0, "wrong_kills": 0, "broken": 0}
        self.progress = Progress()

    def run(self):
        if self.options.point:
            self.play_one(points.Point.parse(self.options.point))
            return
        chosen = [(name, who) for name, all_ in OPERATIONS.items() for who in all_ if self.wanted(name, who)]
        players = [Player(self.machine, f"job-{number}", self.namespace) for number in range(self.options.jobs)]
        try:
            found = self.record(players[0], chosen)
            if self.options.limit is not None:
                found = points.sample(found, self.options.limit, self.options.seed)
            for row in found:
                self.rows.put(row)
            self.progress.begin(sum(row.expected() for row in found))
            self.play_all(players)
        finally:
            self.stopping = True
            for player in players:
                player.end()

    def wanted(self, operation, who):
        only = self.options.operation
        return only is None or only in (operation, f"{operation}:{who}")

    def record(self, player, chosen):
        kind = points.delays if self.options.delays else points.rows
        found = []
        for operation, who in chosen:
            # The calls that are made when nobody strikes; of which, does not matter.
            answer = player.ask("record", points.Point(operation, who, "none", "0"))
            if any(answer[key] for key in ("orphans", "wrong_kills", "broken")):
                self.judge(f"{operation}:{who}, not struck", answer)
                continue
            calls = sum(count for _, _, count in answer["seen"])
            print(f"{operation:12s} {who:8s} {calls:5d} calls of {len(answer['seen'])} kinds", flush=True)
            for name, call, count in answer["seen"]:
                found += kind(operation, name, call, count, self.options.every_call)
        return found

    def play_all(self, players):
        threads = [threading.Thread(target=self.work, args=(player,)) for player in players]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self.stopping = True
            for thread in threads:
                thread.join()
            raise

    def work(self, player):
        while not self.stopping:
            try:
                row = self.rows.get_nowait()
            except queue.Empty:
                return
            try:
                self.play(player, row)
            except EOFError:
                with self.lock:
                    self.counts["broken"] += 1
                    print(f"  broken: the stage ended with {player.process.wait()} at {row}", flush=True)
                return

    def play(self, player, row):
        begun, played = time.monotonic(), 0
        for point in row.points():
            if self.stopping:
                return
            answer = player.ask("point", point)
            played += 1
            with self.lock:
                self.judge(point, answer)
            # One that needs no call to fail from the first on may still meet it later.
            if not answer["struck"] and row.only is None:
                break
        with self.lock:
            self.progress.advance(row.expected())
            name = ":".join(filter(None, (row.operation, row.who, row.call, row.fault)))
            seconds = time.monotonic() - begun
            print(f"{self.progress}  {name:45s} {played:4d} points {seconds:6.1f} s", flush=True)

    def judge(self, point, answer):
        self.counts["points"] += 1
        self.counts["struck"] += answer["struck"]
        for key, what in (("orphans", "orphan"), ("wrong_kills", "wrong kill"), ("broken", "broken")):
            # What is said of the files belongs to what went before it.
            found = [one for one in answer[key] if not one.startswith("its files")]
            self.counts[key] += len(found)
            for one in answer[key]:
                print(f"  {what if one in found else 'see'}: {one}")
        if any(answer[key] for key in ("orphans", "wrong_kills", "broken")):
            print(f"  again: script/chaos --strace --point '{point}'", flush=True)

    def play_one(self, point):
        player = Player(self.machine, "job-0", self.namespace)
        try:
            answer = player.ask("point", point)
            print(f"{point} {'struck' if answer['struck'] else 'did not come'}", flush=True)
            self.judge(point, answer)
        finally:
            player.end()

    def summary(self):
        counts = dict(self.counts)
        broken = counts.pop("broken")
        line = " ".join(f"{key}={value}" for key, value in counts.items())
        return f"chaos --strace: {line}" + (f" broken={broken}" if broken else "")

    def failed(self):
        return any(self.counts[key] for key in ("orphans", "wrong_kills", "broken"))


def main(options):
    why = tracer.permitted()
    if why:
        print(f"chaos --strace: processes cannot be traced here: {why}", file=sys.stderr)
        return 2
    scratch = tempfile.mkdtemp(prefix="snakepit_chaos_")
    sweep = Sweep(Machine(options.build, scratch), options)
    interrupted = False
    try:
        sweep.run()
    except KeyboardInterrupt:
        interrupted = True
    if not sweep.failed():
        shutil.rmtree(scratch, ignore_errors=True)
    print(sweep.summary() + (" (interrupted)" if interrupted else ""))
    return 130 if interrupted else int(sweep.failed())
