"""A steady load for as long as one likes, measured all the while. See script/soak."""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "chaos"))

import beam  # noqa: E402
import judge  # noqa: E402
import proc  # noqa: E402
import results  # noqa: E402
import sampler  # noqa: E402
import verdict  # noqa: E402
from world import Broken, Machine, eventually  # noqa: E402

# Not a second: what the library does once a second would be seen at the same point each time, and at
# another one after a pause, which looks like growth.
SAMPLE_S = 1.07
KILLS_PER_S = 2
VISITOR_EVERY_S = 20
PROGRESS_EVERY_S = 30
# Each act of the load takes a few seconds at most; a stop and start of the application may be in between.
STUCK_S = 60
LEAKS = {
    "atoms": "atoms", "ets": "ets_entries", "processes": "beam_processes", "ports": "ports",
    "descriptors": "beam_fds", "memory": "memory_binary", "disk": "disk_bytes", "survivor": None,
}
HELPERS = ("beam.smp", "erl_child_setup", "snakepit_guardi", "inet_gethost")


class Soak:
    def __init__(self, machine, minutes, seed, leaks):
        self.seconds = minutes * 60
        self.random = random.Random(seed)
        self.machine = machine
        self.directory = machine.scratch
        self.data = os.path.join(machine.scratch, "data")
        self.work = os.path.join(machine.scratch, "work")
        os.mkdir(self.work)
        self.token = f"{os.getpid():07d}{int(time.time()) % 10_000_000:07d}"
        self.judge = judge.Judge(self.token, self.work, "no bystanders here")
        self.samples = []
        self.counts = dict.fromkeys(("crashes", "guardian_kills", "restarts", "beam_crashes"), 0)
        self.enough = False
        self.beam = self.start("main", True, leaks)
        self.visitor = None
        self.begun = time.monotonic()

    def start(self, name, load, leaks=()):
        plan = beam.plan(self.data, self.work, self.token, load, leaks)
        return beam.Beam(self.machine, name, self.directory, self.token, plan)

    @property
    def now(self):
        return time.monotonic() - self.begun

    def run(self):
        """The load, until its time is up or somebody has had enough."""
        self.beam.answer("started")
        self.begun = time.monotonic()
        # Six times at least in a long soak; and not so often that a guardian has no life of its own.
        interrupt_every = max(45, self.seconds / 12)
        due = {self.sample: 0, self.kill: 0, self.visit: 5, self.interrupt: interrupt_every / 2, self.progress: PROGRESS_EVERY_S}
        every = {
            self.sample: SAMPLE_S, self.kill: 1 / KILLS_PER_S, self.visit: VISITOR_EVERY_S,
            self.interrupt: interrupt_every, self.progress: PROGRESS_EVERY_S,
        }
        while not self.enough and self.now < self.seconds:
            act = min(due, key=due.get)
            time.sleep(max(0, due[act] - self.now))
            act()
            # From now on, not from then on: after a pause nothing is made up for.
            due[act] = max(due[act] + every[act], self.now)

    def sample(self):
        number = len(self.samples)
        self.beam.tell(f"sample {number}")
        said = self.beam.answer(f"sample {number} ").split()[2:]
        inside = {key: int(value) for key, value in (pair.split("=") for pair in said)}
        guardian = self.beam.guardian()
        sample = {
            "at": self.now, "beam": self.beam.identity[0], "guardian": guardian and guardian[0], **inside,
            **sampler.of_process("beam", self.beam.identity), **sampler.of_process("guardian", guardian),
            **sampler.disk(self.data), "os_processes": len(self.judge.look()),
            "zombies": sampler.zombies({self.beam.identity[0], guardian and guardian[0]}),
        }
        self.samples.append({**sample, **self.rates(sample)})
        if sample["longest_ms"] > STUCK_S * 1000:
            self.beam.tell("whereabouts")
            self.beam.answer("that is all")
            raise Broken(f"a part of the load has been waiting for more than {STUCK_S} s")

    def rates(self, sample):
        """Per second, since the last sample but nine: single ones are few."""
        earlier = self.samples[-10] if len(self.samples) >= 10 else None
        if not earlier:
            return {}
        commands = sample["commands"] - earlier["commands"]
        rates = {"starts_per_s": (sample["starts"] - earlier["starts"]) / (sample["at"] - earlier["at"])}
        if commands:
            rates["command_ms"] = (sample["command_us"] - earlier["command_us"]) / commands / 1000
        return rates

    def kill(self):
        """Somebody's worker, or what one had started, as the kernel does when memory is short."""
        victims = [one for one in self.judge.look().values() if one.name not in HELPERS]
        if victims and proc.send(self.random.choice(victims).identity, signal.SIGKILL):
            self.counts["crashes"] += 1

    def visit(self):
        """Another BEAM on the same data directory reaps what the last one left, and is killed in its turn."""
        if self.visitor:
            self.visitor.kill()
            self.counts["beam_crashes"] += 1
        self.visitor = self.start("visitor", False)

    def interrupt(self):
        """The guardian is killed, or the application stopped and started again."""
        if self.counts["guardian_kills"] <= self.counts["restarts"]:
            guardian = self.beam.guardian()
            if guardian and proc.send(guardian, signal.SIGKILL):
                self.counts["guardian_kills"] += 1
                eventually(lambda: self.beam.guardian() not in (None, guardian), "the next guardian")
        else:
            self.counts["restarts"] += 1
            self.beam.tell(f"restart again{self.counts['restarts']}")
            self.beam.answer(f"again{self.counts['restarts']}")

    def progress(self):
        last = self.samples[-1]
        print(
            f"{self.now / 60:5.1f} min  {self.text()}  BEAM {last.get('beam_rss', 0) / 2**20:.0f} MiB "
            f"{last.get('beam_fds', 0)} fds  guardian {last.get('guardian_rss', 0) / 2**20:.1f} MiB "
            f"{last.get('guardian_fds', 0)} fds  {last['os_processes']} processes  {last['disk_bytes'] / 1024:.0f} KiB on disk",
            flush=True,
        )

    def text(self):
        last = self.samples[-1] if self.samples else {}
        inside = {key: last.get(key, 0) for key in ("starts", "calls", "refused")}
        return " ".join(f"{key}={value}" for key, value in {**inside, **self.counts}.items())

    def finish(self):
        """Ends everything in good order. What is left all the same."""
        if self.visitor:
            self.visitor.kill()
            eventually(lambda: not self.other_guardians(), "the guardian of the last visitor to end")
        self.beam.tell("stop")
        self.beam.answer("stopped")
        # Twice: nothing may be left when the stop returns, nor come afterwards.
        left = self.judge.await_gone(0, self.is_beam)
        self.beam.close()
        return list({one.identity: one for one in left + self.judge.await_gone(10)}.values())

    def other_guardians(self):
        """That of the last visitor, as long as it ends what that had."""
        mine = self.beam.guardian()
        return [
            one for one in self.judge.look().values()
            if one.name == "snakepit_guardi" and one.identity != mine and one.parent != (mine and mine[0])
        ]

    def is_beam(self, process):
        return process.identity == self.beam.identity or process.name in ("erl_child_setup", "inet_gethost")

    def clean_up(self):
        for one in filter(None, (self.beam, self.visitor)):
            if one.process.poll() is None:
                one.kill()
        self.judge.end_all()


def report(soak, findings, survivors, broken, out):
    grows = [one.quantity.key for one in findings if one.grows]
    unknown = [one.quantity.key for one in findings if one.trend is None]
    for one in findings:
        print(f"  {one.quantity.title:32s} {one.describe():32s} (limit {one.limit_per_hour / one.quantity.scale:,.2f} {one.quantity.unit}".rstrip() + ")")
    for one in survivors:
        print(f"  survivor: {proc.describe(one)}")
    for one in broken:
        print(f"  broken: {one}")
    word = "broken" if broken else "survivors" if survivors else "grows:" + ",".join(grows) if grows else "flat"
    if word == "flat" and unknown:
        word = "too_short"
    summary = {"headline": word, "text": f"{soak.now / 60:.1f} minutes  {soak.text()}", **soak.counts}
    drawn = results.write(out, soak.samples, findings, summary)
    print(f"  {out}: soak.csv soak.json" + (" soak.png" if drawn else ""))
    minutes = soak.samples[-1]["at"] / 60 if soak.samples else 0
    print(f"soak: minutes={minutes:.1f} {soak.text()} survivors={len(survivors)} verdict={word}")
    return word, grows


def play(options, minutes, leaks, out):
    """A soak from its start to its report: the word of the verdict, and what grows."""
    scratch = tempfile.mkdtemp(prefix="snakepit_soak_")
    survivors, broken, soak = [], [], None
    try:
        soak = Soak(Machine(options.build, scratch, sources=HERE, driver="Soak.Load"), minutes, options.seed, leaks)

        def enough(*_):
            soak.enough = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, enough)
        try:
            soak.run()
            survivors = soak.finish()
        except Broken as error:
            broken.append(f"{error}; its log is {soak.beam.output}")
        seconds = soak.samples[-1]["at"] if soak.samples else 0
        soak.begun = time.monotonic() - seconds
        return report(soak, verdict.judge(soak.samples), survivors, broken, out)
    finally:
        if soak:
            soak.clean_up()
        if not broken:
            shutil.rmtree(scratch, ignore_errors=True)


def self_test(options):
    """Whether leaks that are made on purpose are noticed, and each as what it is."""
    suite = unittest.defaultTestLoader.discover(HERE)
    tests = unittest.TextTestRunner(stream=sys.stdout).run(suite)
    word, grows = play(options, options.minutes or 1.0, list(LEAKS), options.out)
    missed = [leak for leak, key in LEAKS.items() if key and key not in grows]
    noticed = word == "survivors" and not missed
    print(f"self-test: noticed {', '.join(grows)}; verdict {word}" + (f"; MISSED {', '.join(missed)}" if missed else ""))
    good = noticed and tests.wasSuccessful()
    print("self-test: the verdict notices" if good else "self-test: FAILED")
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(prog="script/soak")
    parser.add_argument("--minutes", type=float, help="how long (5)")
    parser.add_argument("--out", default="_build/soak", help="where the results go (_build/soak)")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed from outside")
    parser.add_argument("--leak", action="append", default=[], choices=sorted(LEAKS), help="leaks this on purpose")
    parser.add_argument("--self-test", action="store_true", help="whether the verdict notices what is leaked")
    parser.add_argument("--build", default="_build/dev", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.self_test:
        return self_test(options)
    word, _grows = play(options, options.minutes or 5.0, options.leak, options.out)
    return 0 if word == "flat" else 1


if __name__ == "__main__":
    sys.exit(main())
