"""What can happen. Each case is a function of a round, and its docstring what has to hold afterwards."""

import ctypes
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
    # Not earlier: OTP itself loses a SIGTERM that comes while it boots.
    round_.moment(beam, round_.random.choice(["running", "started"]))
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


def one_after_the_other(round_):
    """BEAM and guardian, in either order, a moment apart: the next start ends what is left."""
    beam = round_.launch_random()
    round_.moment(beam, round_.random.choice(["running", "started"]))
    both = [beam.identity(), beam.guardian()]
    round_.random.shuffle(both)
    gap = round_.random.random() ** 2 * 0.2
    round_.note(f"{gap * 1000:.0f} ms apart")
    for identity in filter(None, both):
        proc.send(identity, signal.SIGKILL)
        time.sleep(gap)
    beam.process.wait()
    round_.next_beam()
    round_.expect_gone(beam, patience=0)


def workers_killed(round_):
    """The library goes on, and nothing of theirs outlives its end."""
    beam = round_.launch_random()
    round_.moment(beam, "started")
    workers = beam.workers()
    for one in round_.random.sample(workers, min(len(workers), round_.random.randint(1, 8))):
        proc.send(one.identity, signal.SIGKILL)
    beam.check()
    how = round_.random.choice(["stop", "stop at once", "kill"])
    round_.note(how)
    if how == "kill":
        beam.kill()
        round_.expect_gone(beam)
    else:
        beam.tell(how)
        beam.await_word("stopped", 60)
        round_.expect_gone(beam, patience=0, but=beam.is_beam)


def stopped_and_continued(round_):
    """Whoever was stopped goes on afterwards as if nothing had been."""
    beam = round_.launch_random()
    round_.moment(beam, round_.random.choice(["running", "started"]))
    who = round_.random.choice(["beam", "guardian", "erl_child_setup", "workers"])
    round_.note(f"stopped: {who}")
    chosen = {
        "beam": lambda: [beam.identity()],
        "guardian": lambda: [beam.guardian()],
        "erl_child_setup": lambda: [beam.child_setup()],
        "workers": lambda: [one.identity for one in beam.workers()],
    }[who]()
    chosen = list(filter(None, chosen))
    for identity in chosen:
        proc.send(identity, signal.SIGSTOP)
    time.sleep(round_.random.random() * 0.5)
    for identity in chosen:
        proc.send(identity, signal.SIGCONT)
    beam.check()
    beam.kill()
    round_.expect_gone(beam)


def guardian_stopped_beam_killed(round_):
    """A guardian that could not run when its BEAM died does its work when it can; or the next start does."""
    beam = round_.launch_random()
    round_.moment(beam, round_.random.choice(["running", "started"]))
    guardian = beam.guardian()
    if guardian:
        proc.send(guardian, signal.SIGSTOP)
    time.sleep(round_.random.random() * 0.2)
    beam.kill()
    how = round_.random.choice(["continued", "next start"])
    round_.note(how)
    if how == "continued":
        time.sleep(round_.random.random() * 0.3)
        if guardian:
            proc.send(guardian, signal.SIGCONT)
        round_.expect_gone(beam)
    else:
        round_.next_beam()
        round_.expect_gone(beam, patience=0)


def two_beams(round_):
    """Two on one data directory: the end of one is nothing to the other."""
    one_first = round_.random.random() < 0.5
    if one_first:
        beam = round_.launch_random()
    other = round_.launch("other", pools=[(programs.family, 2), (programs.siblings, 1)], stable=True)
    if not one_first:
        other.await_started()
        beam = round_.launch_random()
    round_.moment(beam)
    other.await_started()
    round_.spare(other)
    if round_.random.random() < 0.5:
        round_.note("with its guardian")
        beam.kill_with_guardian()
        round_.next_beam()
        round_.expect_gone(beam, patience=0)
    else:
        beam.kill()
        round_.expect_gone(beam)
    round_.verdict()
    round_.release(other)
    other.kill()
    round_.expect_gone(other)


def two_next_beams(round_):
    """Two that start at once after a death share the work, and neither harms the other."""
    beam = round_.launch_random()
    round_.moment(beam, "started")
    beam.kill_with_guardian()
    heirs = [round_.launch(name, pools=[(programs.family, 1)], stable=True) for name in ("next", "other")]
    for heir in heirs:
        heir.await_started()
    round_.expect_gone(beam)
    for heir in heirs:
        round_.spare(heir)
    # What one of them still meant to end would end now.
    time.sleep(0.2)
    round_.verdict()
    for heir in heirs:
        round_.release(heir)
        heir.kill()
        round_.expect_gone(heir)


def ledger_damaged(round_):
    """Whatever the files of a dead run contain: its processes are found, and no others."""
    beam = round_.launch_random()
    round_.moment(beam, round_.random.choice(["running", "started"]))
    beam.kill_with_guardian()
    for directory, _, names in sorted(os.walk(round_.data)):
        for name in sorted(names):
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                damage(round_, path)
    round_.next_beam()
    round_.expect_gone(beam, patience=0)


def damage(round_, path):
    how = round_.random.choice(["left", "cut", "overwritten", "extended", "emptied", "deleted"])
    round_.note(f"{os.path.basename(path)} {how}")
    size = os.path.getsize(path)
    if how == "cut":
        os.truncate(path, round_.random.randint(0, size))
    elif how == "emptied":
        os.truncate(path, 0)
    elif how == "deleted":
        os.unlink(path)
    elif how == "extended":
        with open(path, "ab") as file:
            file.write(round_.random.randbytes(round_.random.randint(1, 4096)))
    elif how == "overwritten" and size:
        with open(path, "r+b") as file:
            for _ in range(round_.random.randint(1, 16)):
                file.seek(round_.random.randrange(size))
                file.write(round_.random.randbytes(8))


def ledger_deleted(round_):
    """The guardian does without it; and after both have died, so does the next start, for what kept its marks.

    By them it knows its own only as long as the directory is the same instance.
    """
    if round_.random.random() < 0.5:
        beam = round_.launch_random()
        round_.moment(beam, "running")
        shutil.rmtree(round_.data, ignore_errors=True)
        time.sleep(round_.random.random() * 0.3)
        beam.kill()
        round_.expect_gone(beam)
    else:
        # Documented: who has thrown away its environment is not recognised then.
        beam = round_.launch("a", pools=round_.pools(programs.MARKED))
        round_.moment(beam, "started")
        beam.kill_with_guardian()
        round_.note("after both were killed")
        for name in os.listdir(round_.data):
            if name != "instance":
                shutil.rmtree(os.path.join(round_.data, name))
        round_.next_beam()
        round_.expect_gone(beam, patience=0)


def disk_full(round_):
    """Nothing new can be recorded, and what was can be ended all the same."""
    os.mkdir(round_.data)
    mount("tmpfs", round_.data, "size=512k,mode=0700")
    try:
        beam = round_.launch_random()
        round_.moment(beam)
        filler = os.path.join(round_.data, "filler")
        fill(filler)
        time.sleep(round_.random.random() * 0.3)
        how = round_.random.choice(["stop", "kill", "both"])
        round_.note(how)
        if how == "stop" and beam.said("started"):
            beam.tell("stop")
            beam.await_word("stopped", 60)
            round_.expect_gone(beam, patience=0, but=beam.is_beam)
        elif how == "both":
            beam.kill_with_guardian()
            os.unlink(filler)
            round_.next_beam()
            round_.expect_gone(beam, patience=0)
        else:
            beam.kill()
            round_.expect_gone(beam)
    finally:
        round_.at_end.append(lambda: unmount(round_.data))


def fill(path):
    with open(path, "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                pass


def mount(kind, path, options):
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(kind.encode(), path.encode(), kind.encode(), 0, options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {path}")


def unmount(path):
    ctypes.CDLL(None).umount2(path.encode(), 2)  # MNT_DETACH


def pids_reused(round_):
    """Bystanders get the very pids that the ledger of a dead run names."""
    beam = round_.launch("a", pools=round_.pools([programs.obedient, programs.family, programs.stubborn, programs.scrubbed]))
    round_.moment(beam, "started")
    before = list(beam.judge.look())
    alive = round_.random.random() < 0.5
    if alive:
        round_.note("while it runs")
        leaders = [one.identity for one in beam.workers() if one.parent == (beam.guardian() or (0,))[0]]
        for identity in leaders:
            proc.send(identity, signal.SIGKILL)
    else:
        beam.kill_with_guardian()
    taken = 0
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        # Here we are init: a pid is free again when we have buried its process.
        round_.bury()
        for pid, _start in before:
            if not os.path.exists(f"/proc/{pid}"):
                taken += take_pid(round_, pid)
    round_.note(f"{taken} pids taken")
    round_.mark_bystanders()
    if alive:
        beam.check()
        beam.kill()
        round_.expect_gone(beam)
    round_.next_beam()
    round_.expect_gone(beam, patience=0)


def take_pid(round_, pid):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
    child = round_.start_bystander(programs.obedient(round_.bystander_token))
    return child.pid == pid


def low_pid_max(round_):
    """Pids come around again and again, from the first to the last of a few hundred."""
    with open("/proc/sys/kernel/pid_max", "w") as file:
        file.write("700")
    beam = round_.launch_random()
    round_.moment(beam, "started")
    for _ in range(4):
        for _ in range(150):
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        for _ in range(10):
            round_.start_bystander(programs.obedient(round_.bystander_token))
    how = round_.random.choice(["kill", "both", "guardian"])
    round_.note(how)
    eventually(lambda: all(proc.look_up(child.pid).name in ("sleep", "sh") for child in round_.children), "bystanders")
    round_.mark_bystanders()
    if how == "both":
        beam.kill_with_guardian()
        round_.next_beam()
    elif how == "guardian":
        proc.send(beam.guardian(), signal.SIGKILL)
        beam.check()
        beam.kill()
    else:
        beam.kill()
    round_.expect_gone(beam)


CASES = {
    case.__name__: case
    for case in [
        orderly_stop, halt, beam_terminated, beam_interrupted_twice, beam_killed, guardian_killed, both_killed,
        one_after_the_other, child_setup_killed, workers_killed, stopped_and_continued,
        guardian_stopped_beam_killed, two_beams, two_next_beams, ledger_damaged, ledger_deleted, disk_full,
        pids_reused, low_pid_max,
    ]
}


def orphans_on_purpose(round_):
    """Nobody starts after both have died: what they leave has to be counted."""
    beam = round_.launch("a", pools=[(programs.family, 2)], stable=True)
    beam.await_started()
    beam.kill_with_guardian()
    round_.expect_gone(beam, patience=1)


def wrong_kill_on_purpose(round_):
    """A bystander dies: that has to be counted."""
    beam = round_.launch("a", pools=[(programs.family, 1)], stable=True)
    beam.await_started()
    round_.moment(beam, "started")
    proc.send(round_.random.choice(sorted(round_.watch.bystanders)), signal.SIGTERM)
    beam.kill()
    round_.expect_gone(beam)
    eventually(round_.watch.hit, "the bystander to end")


# What the judge has to say of them: orphans, wrong kills, and what could not be done.
ON_PURPOSE = {orphans_on_purpose: (8, 0, 0), wrong_kill_on_purpose: (0, 1, 0)}

# Need a pid namespace, or a mount namespace, and so root.
IN_A_PID_NAMESPACE = ["pids_reused", "low_pid_max"]
NEEDS_ROOT = IN_A_PID_NAMESPACE + ["disk_full"]
