"""What can happen. Each case is a function of a round, and its docstring what has to hold afterwards."""

import os
import shutil
import signal
import time

import proc
import programs
from world import eventually


def orderly_stop(round_):
    """Nothing is left when the stop of the application returns."""
    beam = round_.launch_random()
    round_.moment(beam, "started")
    how = round_.random.choice(["stop", "stop at once"])
    round_.note(how)
    beam.tell(how)
    beam.await_word("stopped", 60)
    round_.expect_gone(beam, patience=0, but=beam.is_beam)


def halt(round_):
    """`System.halt`: the guardian ends everything."""
    beam = round_.launch_random()
    round_.moment(beam, "started")
    beam.tell("halt")
    round_.expect_gone(beam)


def beam_terminated(round_):
    """SIGTERM: an orderly stop of everything."""
    beam = round_.launch_random()
    round_.moment(beam)
    beam.signal(signal.SIGTERM)
    round_.expect_gone(beam, 60)


def beam_interrupted_twice(round_):
    """SIGINT twice: the end without a word."""
    beam = round_.launch_random()
    round_.moment(beam, "started")
    beam.signal(signal.SIGINT)
    time.sleep(0.1)
    beam.signal(signal.SIGINT)
    round_.expect_gone(beam)


def beam_killed(round_):
    """The guardian ends everything."""
    beam = round_.launch_random()
    round_.moment(beam)
    beam.kill()
    round_.expect_gone(beam)


def guardian_killed(round_):
    """What ran below it is gone, the library goes on, and so does its end."""
    beam = round_.launch_random()
    round_.moment(beam, round_.random.choice(["running", "started"]))
    before = {one.identity for one in beam.workers()}
    guardian = beam.guardian()
    if guardian:
        proc.send(guardian, signal.SIGKILL)
    beam.check()
    left = [one for one in beam.workers() if one.identity in before]
    deadline = time.monotonic() + 10
    while left and time.monotonic() < deadline:
        left = [one for one in left if proc.alive(one.identity)]
        time.sleep(0.01)
    round_.orphans += [f"after the guardian's death: {proc.describe(one)}" for one in left]
    beam.kill()
    round_.expect_gone(beam)


def both_killed(round_):
    """The next start ends everything before it says that it runs."""
    beam = round_.launch_random()
    round_.moment(beam)
    beam.kill_with_guardian()
    round_.next_beam()
    round_.expect_gone(beam, patience=0)


def child_setup_killed(round_):
    """That ends the BEAM, and the guardian ends everything."""
    beam = round_.launch_random()
    round_.moment(beam, round_.random.choice(["running", "started"]))
    proc.send(beam.child_setup(), signal.SIGKILL)
    eventually(lambda: not beam.lives(), "the BEAM to end")
    round_.expect_gone(beam)


CASES = {
    case.__name__: case
    for case in [
        orderly_stop, halt, beam_terminated, beam_interrupted_twice, beam_killed, guardian_killed, both_killed,
        child_setup_killed,
    ]
}
