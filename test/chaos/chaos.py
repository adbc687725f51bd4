"""Rounds of chaos, and their verdicts. See script/chaos."""

import argparse
import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

import cases
import proc
import programs
import stage
import sweep
from progress import Progress
from world import Broken, Machine, Round


def order(seed, rounds, names):
    """Which case each round is: all of them before one comes again."""
    source = random.Random(f"{seed}:order")
    picked = []
    while len(picked) < rounds:
        picked += source.sample(names, len(names))
    return picked[:rounds]


CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 0x4000 | 1 << 18


def leave_mounts():
    """A mount namespace of our own: what is mounted here nobody else sees, and it vanishes with us."""
    library = ctypes.CDLL(None)
    return library.unshare(CLONE_NEWNS) == 0 and library.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0


class Resident:
    """A BEAM with workers that has nothing to do with any round, and has to live through all of them."""

    def __init__(self, machine, seed):
        self.round = Round(machine, seed, 0, "resident")
        self.beam = self.round.launch("resident", pools=[(programs.family, 2), (programs.stubborn, 1)], stable=True)
        self.beam.await_started()
        self.round.spare(self.beam)
        self.round.mark_bystanders()

    def verdict(self):
        """What was hit since the last time."""
        found = self.round.watch.hit()
        for identity in list(self.round.watch.bystanders):
            process = proc.alive(identity)
            if process is None:
                del self.round.watch.bystanders[identity]
        return found

    def end(self):
        self.round.release(self.beam)
        self.round.clean_up()
        self.round.remove()


def play_inside(machine, options, number, name):
    """One round, in a pid namespace where it may choose pids. Its problems."""
    here = os.path.abspath(__file__)
    line = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-B", here]
    line += ["--inside", json.dumps([machine.scratch, machine.paths, number, name]), "--seed", str(options.seed)]
    line += ["--only", name] if options.only else []
    said = subprocess.run(line, stdout=subprocess.PIPE, text=True)
    *lines, last = said.stdout.splitlines() or [""]
    print("\n".join(lines), flush=True)
    counts = re.fullmatch(r"inside (\d+) (\d+) (\d+)", last)
    if counts:
        return tuple(map(int, counts.groups()))
    print(f"{last}\n  broken: round {number} in a pid namespace ended with {said.returncode}")
    return 0, 0, 1


def play(machine, seed, number, name, keep, case=None):
    """One round. Its problems."""
    begun = time.monotonic()
    round_ = Round(machine, seed, number, name)
    broken = []
    try:
        (case or cases.CASES[name])(round_)
        round_.verdict()
    except Exception as error:
        broken.append(str(error) if isinstance(error, Broken) else traceback.format_exc())
        round_.verdict()
    except BaseException:
        # Somebody has had enough.
        round_.clean_up()
        round_.remove()
        raise
    round_.clean_up()
    seconds = time.monotonic() - begun
    counts = f"orphans={len(round_.orphans)} wrong_kills={len(round_.wrong_kills)}"
    print(f"round {number:4d}  {name:28s} {counts}  {seconds:5.1f} s  {'; '.join(round_.story)}", flush=True)
    for kind, found in (("orphan", round_.orphans), ("wrong kill", round_.wrong_kills), ("broken", broken)):
        for one in found:
            print(f"  {kind}: {one}")
    failed = bool(round_.orphans or round_.wrong_kills or broken)
    if failed:
        print(f"  again: script/chaos --seed {seed} --round {number}" + (f" --only {name}" if keep else ""))
        print(f"  its files: {round_.directory}", flush=True)
    else:
        round_.remove()
    return len(round_.orphans), len(round_.wrong_kills), len(broken)


def self_test(machine, seed):
    """Whether real rounds that go wrong on purpose are seen to."""
    noticed = True
    for number, (case, expected) in enumerate(cases.ON_PURPOSE.items(), 1):
        counts = play(machine, seed, number, case.__name__, True, case)
        noticed = noticed and counts == expected
        print(f"self-test: {case.__name__}: expected {expected}, counted {counts}")
    suite = unittest.defaultTestLoader.discover(os.path.dirname(os.path.abspath(__file__)))
    tests = unittest.TextTestRunner(stream=sys.stdout).run(suite)
    print("self-test: the judge notices" if noticed and tests.wasSuccessful() else "self-test: FAILED")
    return 0 if noticed and tests.wasSuccessful() else 1


def main():
    parser = argparse.ArgumentParser(prog="script/chaos")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="only this one, as it was in a run with this seed")
    parser.add_argument("--only", choices=sorted(cases.CASES), help="only this case")
    parser.add_argument("--build", default="_build/dev", help=argparse.SUPPRESS)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--strace", action="store_true", help="strike at each system call of some operations")
    parser.add_argument("--operation", help="with --strace: spawn, stop, shutdown, registration, reaping, or one with who, as spawn:guardian")
    parser.add_argument("--delays", action="store_true", help="with --strace: let calls take 100 ms, rather than die or fail at them")
    parser.add_argument("--limit", type=int, help="with --strace: only so many points, chosen by --seed")
    parser.add_argument("--every-call", action="store_true", help="with --strace: leave out no count of any call")
    parser.add_argument("--point", help="with --strace: only this one, such as spawn:guardian:clone:3")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="with --strace: how many at a time")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.inside:
        scratch, paths, number, name = json.loads(options.inside)
        print("inside", *play(Machine(options.build, scratch, paths), options.seed, number, name, options.only))
        return 0
    if options.stage:
        stage.serve(options.build, *json.loads(options.stage))
        return 0
    if options.strace or options.point:
        return sweep.main(options)
    if options.list:
        for name, case in cases.CASES.items():
            print(f"{name:28s} {case.__doc__.splitlines()[0]}")
        return 0

    if options.self_test:
        with tempfile.TemporaryDirectory(prefix="snakepit_chaos_") as scratch:
            return self_test(Machine(options.build, scratch), options.seed)

    # As an exception, so that everything is cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = [options.only] if options.only else list(cases.CASES)
    if os.getuid() != 0 or not leave_mounts():
        skipped = [name for name in names if name in cases.NEEDS_ROOT]
        names = [name for name in names if name not in skipped]
        print(f"no root with a mount namespace of its own, so without {', '.join(skipped)}")
    rounds = options.round or options.rounds
    chosen = list(enumerate(order(options.seed, rounds, names), 1))
    if options.round:
        chosen = chosen[-1:]
    scratch = tempfile.mkdtemp(prefix="snakepit_chaos_")
    totals = [0, 0, 0]
    played = []
    machine = Machine(options.build, scratch)
    resident = Resident(machine, options.seed)
    progress = Progress(len(chosen))
    interrupted = False
    try:
        for number, name in chosen:
            if name in cases.IN_A_PID_NAMESPACE:
                counts = play_inside(machine, options, number, name)
            else:
                counts = play(machine, options.seed, number, name, options.only)
            hit = resident.verdict()
            for one in hit:
                print(f"  wrong kill: {one}")
            totals = [a + b for a, b in zip(totals, (counts[0], counts[1] + len(hit), counts[2]))]
            played.append(name)
            progress.advance()
            if progress.is_due():
                print(f"-- {progress}  orphans={totals[0]} wrong_kills={totals[1]} broken={totals[2]}", flush=True)
    except KeyboardInterrupt:
        # The round under way has been cleaned up, and is not counted.
        interrupted = True
    finally:
        resident.end()
        if not any(totals):
            shutil.rmtree(scratch, ignore_errors=True)
    orphans, wrong_kills, broken = totals
    more = (f" broken={broken}" if broken else "") + (" (interrupted)" if interrupted else "")
    print(
        f"chaos: rounds={len(played)} cases={len(set(played))} orphans={orphans} wrong_kills={wrong_kills} "
        f"seed={options.seed}{more}"
    )
    return 1 if any(totals) else 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
