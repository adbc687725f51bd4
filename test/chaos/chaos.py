"""Rounds of chaos, and their verdicts. See script/chaos."""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time

import cases
import judge
from world import Broken, Machine, Round


def order(seed, rounds, names):
    """Which case each round is: all of them before one comes again."""
    source = random.Random(f"{seed}:order")
    picked = []
    while len(picked) < rounds:
        picked += source.sample(names, len(names))
    return picked[:rounds]


def play(machine, seed, number, name, keep):
    """One round. Its problems."""
    begun = time.monotonic()
    round_ = Round(machine, seed, number, name)
    broken = []
    try:
        cases.CASES[name](round_)
        round_.verdict()
    except Broken as error:
        broken.append(str(error))
        round_.verdict()
    finally:
        round_.clean_up()
    seconds = time.monotonic() - begun
    counts = f"orphans={len(round_.orphans)} wrong_kills={len(round_.wrong_kills)}"
    print(f"round {number:4d}  {name:24s} {counts}  {seconds:5.1f} s  {'; '.join(round_.story)}", flush=True)
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


def main():
    parser = argparse.ArgumentParser(prog="script/chaos")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="only this one, as it was in a run with this seed")
    parser.add_argument("--only", choices=sorted(cases.CASES), help="only this case")
    parser.add_argument("--build", default="_build/dev", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for name, case in cases.CASES.items():
            print(f"{name:24s} {case.__doc__.splitlines()[0]}")
        return 0

    names = [options.only] if options.only else list(cases.CASES)
    rounds = options.round or options.rounds
    chosen = list(enumerate(order(options.seed, rounds, names), 1))
    if options.round:
        chosen = chosen[-1:]
    scratch = tempfile.mkdtemp(prefix="snakepit_chaos_")
    totals = [0, 0, 0]
    played = set()
    machine = Machine(options.build, scratch)
    for number, name in chosen:
        played.add(name)
        totals = [a + b for a, b in zip(totals, play(machine, options.seed, number, name, options.only))]
    if not any(totals):
        shutil.rmtree(scratch, ignore_errors=True)
    orphans, wrong_kills, broken = totals
    more = f" broken={broken}" if broken else ""
    print(
        f"chaos: rounds={len(chosen)} cases={len(played)} orphans={orphans} wrong_kills={wrong_kills}{more} "
        f"seed={options.seed}"
    )
    return 1 if any(totals) else 0


if __name__ == "__main__":
    sys.exit(main())
