"""Where points are struck, one after the other: a round whose BEAMs live on as long as nobody kills them.

Runs in a process of its own, in a pid namespace where that may be had: there the process table is short,
and so is whoever walks it. It is told what to do on standard input and answers there, a line of JSON each.
"""

import collections
import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback

import points
import proc
import programs
from tracer import Tracer
from world import Broken, Machine, Round, eventually

# One of each, so that a thread's calls are always those of the same thread.
BEAM_FLAGS = ["+S", "1:1", "+SDcpu", "1:1", "+SDio", "1", "+A", "1", "+sbwt", "none"]
# The library takes this many deaths of a guardian in five seconds for something that will not stop.
GUARDIANS_PER_BEAM = 12
# Each BEAM leaves bystanders, and they would make the process table long.
BEAMS_PER_ROUND = 8
# How long whoever does not get what it needs is left without.
DROUGHT = 2.0
# How long a guardian may take to fork children for the next callers, under a tracer.
REFILL = 1.0


class Stage:
    # Of all stages: directories are numbered by it.
    rounds = 0

    def __init__(self, machine):
        self.machine = machine
        self.round = None
        self.beam = None
        self.trace = os.path.join(machine.scratch, "trace")

    # The round and its BEAMs.

    def new_round(self):
        Stage.rounds += 1
        self.round = Round(self.machine, 1, Stage.rounds, "strace")
        self.round.grace = 100
        self.guardians = 0

    def close_round(self):
        if self.round:
            self.round.clean_up()
            self.round.remove()
        self.round = self.beam = None

    def launch(self, held=False):
        beam = self.round.launch(f"beam-{len(self.round.beams)}", worker=programs.stubborn, held=held)
        beam.await_word("held" if held else "started")
        return beam

    def current(self):
        """A BEAM that runs; the next one on the same data directory if the last was killed."""
        if self.round is None:
            self.new_round()
        if self.beam is None:
            self.beam = self.launch()
            if len(self.round.beams) == 1:
                self.round.start_impostors(self.beam)
        return self.beam

    def retire(self):
        """Whether a BEAM leaves nothing is asked of each, also of those that were not struck."""
        if self.beam and (self.guardians >= GUARDIANS_PER_BEAM or len(self.round.beams) >= BEAMS_PER_ROUND):
            self.beam.kill()
            self.round.expect_gone(self.beam)
            self.beam, self.guardians = None, 0

    # One point.

    def play(self, point):
        beam = self.current()
        eventually(lambda: all(child.poll() is None for child in self.round.children), "bystanders", 1)
        self.round.mark_bystanders()
        kind = self.reap_by_guardian if point.target != "beam" else self.reap_by_beam
        try:
            struck = kind(point, beam) if point.operation == "reaping" else self.operate(point, beam)
            self.retire()
            broken = []
        except Exception as error:
            struck = True
            broken = [str(error) if isinstance(error, Broken) else traceback.format_exc()]
        self.round.verdict()
        self.round.bury()
        orphans, wrong_kills = self.round.orphans, self.round.wrong_kills
        if orphans or wrong_kills or broken:
            # Nothing of it may be found again at the next point. Its files stay.
            self.round.clean_up()
            broken += [f"its files: {self.round.directory}"]
            self.round = self.beam = None
        elif len(self.round.beams) >= BEAMS_PER_ROUND:
            self.close_round()
        return {"struck": struck, "orphans": orphans, "wrong_kills": wrong_kills, "broken": broken}

    def operate(self, point, beam):
        """Something is done in a BEAM that runs."""
        if point.operation != "spawn":
            self.do_well(beam, "spawn")
        guardian = beam.guardian()
        alone = point.operation == "registration" and point.target == "beam" and not point.fault
        if alone:
            # The ledger is all that the next BEAM will have.
            proc.send(guardian, signal.SIGSTOP)
        ahead = len(self.waiting(beam))

        def act():
            with self.killing(point, beam, guardian):
                answer = self.do(beam, point.operation, point)
            if point.operation == "spawn":
                # The guardian forks the next one only now, and that belongs to it. (It may be kept from it.)
                self.within(REFILL, lambda: not beam.lives() or len(self.waiting(beam)) >= ahead)
            return answer

        answer, struck = self.strike(point, beam, act)
        if not beam.lives():
            if point.kills:
                return self.after_death(beam, True, patience=30, starts=False) and struck
            if point.only_delays:
                raise Broken(f"BEAM {beam.name} ended of a delay, with {beam.process.wait()}")
            if alone:
                proc.end([guardian])
            return self.after_death(beam, struck, patience=0 if alone else 30, starts=alone)
        if alone:
            proc.send(guardian, signal.SIGCONT)
        try:
            self.settle(point, beam, answer)
        except Broken:
            # Struck at its last call, it may have answered before it died.
            if point.target != "beam" or point.fault or beam.process.poll() != -signal.SIGKILL:
                raise
            return self.after_death(beam, True, patience=30, starts=False)
        self.guardians += struck and (not point.fault or point.kills)
        return struck

    @contextlib.contextmanager
    def killing(self, point, beam, guardian):
        """Kills the other one in the middle of a call that takes long, if that is the point."""
        if not point.kills:
            yield
            return
        victim = guardian if point.target == "beam" else beam.shell
        timer = threading.Timer(points.DELAY_US / 2e6, proc.send, (victim, signal.SIGKILL))
        timer.start()
        try:
            yield
        finally:
            timer.join()
        if victim == beam.shell:
            # Whoever is delayed has something to do now. If the tracer let go of it, it would be in time.
            beam.process.wait()
            eventually(lambda: not proc.alive(guardian), "the guardian to end")

    def after_death(self, beam, struck, patience, starts):
        if not struck:
            raise Broken(f"BEAM {beam.name} ended by itself, with {beam.process.returncode}")
        beam.process.wait()
        self.beam = None
        if starts:
            self.current()
        self.round.expect_gone(beam, patience)
        return struck

    def settle(self, point, beam, answer):
        """The BEAM lives: it has to have answered, to work on, and to have nothing that it does not know of."""
        if not answer.startswith("ok" if point.only_delays else ("ok", "error: ")):
            raise Broken(f"{point.operation} was answered with {answer!r}")
        if point.operation == "shutdown":
            self.round.expect_gone(beam, patience=5, but=beam.is_beam)
            self.do_well(beam, "boot")
        if point.operation == "registration":
            self.do_well(beam, "records")
        beam.check()
        self.do_well(beam, "stop")
        self.round.expect_gone(beam, patience=10, but=self.serving(beam))

    def serving(self, beam):
        """Who is there as long as the library runs: the BEAM, its guardian, and who waits at the gate."""
        guardian = (beam.guardian() or (0,))[0]

        def serves(process):
            waits = process.name == "snakepit_guardi" and process.parent == guardian
            return process.pid == guardian or waits or beam.is_beam(process)

        return serves

    def reap_by_guardian(self, point, beam):
        """The BEAM is killed, and its guardian is struck while it ends everything."""
        self.do_well(beam, "spawn")
        guardian = beam.guardian()

        def die():
            beam.kill()
            self.wait(lambda: not proc.alive(guardian), point)

        _, struck = self.strike(point, beam, die)
        if struck and not point.fault:
            return self.after_death(beam, True, patience=0, starts=True)
        return self.after_death(beam, True, patience=30, starts=False) and struck

    def reap_by_beam(self, point, beam):
        """Both were killed, and the next BEAM is struck while it ends what they left."""
        self.do_well(beam, "spawn")
        beam.kill_with_guardian()
        heir = self.launch(held=True)
        answer, struck = self.strike(point, heir, lambda: self.do(heir, "boot", point))
        self.beam = None
        if heir.lives():
            self.beam = heir
            if answer.startswith("error: "):
                self.do_well(heir, "boot")
            self.round.expect_gone(beam, patience=5)
            self.settle(point, heir, answer)
        else:
            self.after_death(heir, struck, patience=0, starts=True)
            self.round.expect_gone(beam, patience=0)
        return struck

    # Telling, and striking.

    def do(self, beam, step, point=None):
        """What it answers; nothing if it dies of it."""
        before = len(beam.answers(f"{step} "))
        beam.tell(f"do {step}")

        def answered():
            return len(beam.answers(f"{step} ")) > before or not beam.lives()

        if not self.wait(answered, point):
            return lambda: self.late(beam, step, answered)
        return (beam.answers(f"{step} ")[before:] or [""])[0]

    def late(self, beam, step, answered):
        """It could not go on as long as it was struck; now it can."""
        eventually(answered, f"{step} to be answered")
        return (beam.answers(f"{step} ")[-1:] or [""])[0]

    def wait(self, condition, point):
        """Whether it came. Someone whose every call fails need not get on before that ends."""
        if point is None or not point.count.endswith("+"):
            return eventually(condition, "an end of it")
        return self.within(DROUGHT, condition)

    def within(self, seconds, condition):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def do_well(self, beam, step):
        answer = self.do(beam, step)
        if answer != "ok":
            raise Broken(f"{step} was answered with {answer!r}")

    def strike(self, point, beam, act):
        """Acts with the tracer on whoever is to be struck. The answer, and whether it struck."""
        arguments = point.injection()
        if point.on_files():
            arguments += [part for path in self.files() for part in ("-P", path)]
        with Tracer(self.trace, self.pids(point, beam), arguments) as tracer:
            answer = act()
        # A thread that dies with its process is not always seen to by who traces that thread alone.
        killed = point.target == "beam" and beam.process.poll() == -signal.SIGKILL
        # Who dies in a call that takes long never returns from it.
        entered = point.kills and max(tracer.calls().values(), default=0) >= int(point.count)
        struck = tracer.struck() or killed or entered
        return (answer() if callable(answer) else answer), struck

    def pids(self, point, beam):
        if point.target == "beam":
            found = [pid for pid, name in threads(beam).items() if name == point.thread]
        elif point.target == "guardian":
            found = [beam.guardian()[0]]
        else:
            found = self.settled(beam)
        if not found:
            raise Broken(f"there is no {point.who}")
        return found

    def waiting(self, beam):
        """Children that wait for something to become."""
        guardian = (beam.guardian() or (0,))[0]
        return [one.pid for one in proc.table().values() if one.parent == guardian and one.name == "snakepit_guardi"]

    def settled(self, beam):
        """Those that wait when nobody is being forked: whoever forks them looks like one, and is gone at once."""
        looks = [None]

        def twice_the_same():
            looks.append(self.waiting(beam))
            return looks[-1] == looks[-2]

        eventually(twice_the_same, "the guardian to have forked")
        return looks[-1]

    def files(self):
        """All that runs which are there now have, or may come to have."""
        names = ["", "journal", "journal.old", "ledger.dets", "history", "history.new", "adopted", "obituary", "lock"]
        runs = [os.path.join(self.round.data, run) for run in os.listdir(self.round.data)]
        return [self.round.data] + [os.path.join(run, name).rstrip("/") for run in runs for name in names]


class Recorder(Stage):
    """Strikes nobody, and counts."""

    def strike(self, point, beam, act):
        pids = [beam.shell[0]] if point.target == "beam" else self.pids(point, beam)
        names = threads(beam) if point.target == "beam" else {}
        with Tracer(self.trace, pids, threads=point.target == "beam") as tracer:
            answer = act()
        self.seen = collections.Counter()
        for (thread, call), count in tracer.calls().items():
            name = f"{point.target}/{names[thread]}" if thread in names else point.target
            # Of several children it is the one that did the most.
            self.seen[(name, call)] = max(self.seen[(name, call)], count)
        return answer, False


def threads(beam):
    """Their names, by id."""
    directory = f"/proc/{beam.shell[0]}/task"
    found = {}
    for thread in os.listdir(directory):
        with open(f"{directory}/{thread}/comm") as file:
            found[int(thread)] = file.read().strip()
    return found


def serve(build, scratch, paths):
    """Plays what is asked for, until nobody asks any more."""
    machine = Machine(build, scratch, paths, BEAM_FLAGS)
    stage = Stage(machine)
    try:
        for line in sys.stdin:
            word, text = line.split()
            point = points.Point.parse(text)
            if word == "record":
                stage.close_round()
                recorder = Recorder(machine)
                answer = recorder.play(point)
                answer["seen"] = [[who, call, count] for (who, call), count in sorted(recorder.seen.items())]
                recorder.close_round()
            else:
                answer = stage.play(point)
            print(json.dumps(answer), flush=True)
    finally:
        stage.close_round()
