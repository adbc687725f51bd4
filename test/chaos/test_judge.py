"""A judge that cannot fail is worth nothing: it has to see what was left and what was hit on purpose."""

import os
import signal
import subprocess
import tempfile
import unittest

import chaos
import judge
import proc
import programs
from world import Machine, Round, eventually


class Scene(unittest.TestCase):
    """A round without a BEAM: its programs are started by the test."""

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.round = Round(Machine("/nowhere", self.scratch.name, ["no paths"]), 1, 1, "scene")
        self.addCleanup(self.round.clean_up)
        self.token = self.round.new_token()
        self.directory = os.path.join(self.scratch.name, "work")
        os.mkdir(self.directory)
        self.judge = judge.Judge(self.token, self.directory, self.round.bystander_token)
        self.addCleanup(self.judge.end_all)

    def start(self, command, cwd="/", env=None):
        child = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def names(self):
        return sorted(one.name for one in self.judge.look().values())


class OrphansTest(Scene):
    def test_a_daemon_with_an_empty_environment_is_an_orphan(self):
        sleep = programs.asleep(self.token)
        self.start(programs.shell(f"(env -i setsid {sleep} &)")).wait()
        left = eventually(lambda: [one for one in self.judge.await_gone(0.1) if one.name == "sleep"], "the daemon")
        self.assertEqual(len(left), 1)
        self.assertIn(self.token, proc.describe(left[0]))

    def test_the_working_directory_gives_it_away(self):
        self.start(["sleep", "86400"], cwd=self.directory, env={"PATH": os.environ["PATH"]})
        eventually(lambda: self.names() == ["sleep"], "the sleeper")

    def test_the_environment_gives_it_away(self):
        self.start(["sleep", "86400"], env=dict(os.environ, **{judge.VARIABLE: self.token}))
        eventually(lambda: self.names() == ["sleep"], "the sleeper")

    def test_descent_gives_it_away(self):
        script = f"env -i sleep 86400 & : {self.token}; wait"
        self.start(programs.shell(script))
        eventually(lambda: self.names() == ["sh", "sleep"], "the family")

    def test_who_was_seen_once_is_known_when_its_marks_are_gone(self):
        # The shell with the token ends; its child has no mark, and nobody leads to it.
        shell = self.start(programs.shell(f"env -i sleep 86400 & : {self.token}; read _ < {self.pipe()}"))
        eventually(lambda: self.names() == ["sh", "sleep"], "the family")
        shell.kill()
        shell.wait()
        self.assertEqual(self.names(), ["sleep"])

    def test_who_becomes_a_bystander_is_no_orphan_though_it_was_seen(self):
        # As the process of a port, which looks like the BEAM's own until it executes its program.
        becomes = f"exec sleep 86400.{self.round.bystander_token}"
        seen = self.start(["sh", "-c", f'read line < {self.pipe()}; eval "$line"', "sh", self.token])
        eventually(lambda: self.names() == ["sh"], "the shell")
        with open(os.path.join(self.scratch.name, "pipe"), "w") as pipe:
            pipe.write(becomes + "\n")
        eventually(lambda: b"sleep" in proc.command(seen.pid), "the bystander")
        self.assertEqual(self.names(), [])

    def pipe(self):
        path = os.path.join(self.scratch.name, "pipe")
        os.mkfifo(path)
        return path

    def test_a_stopped_process_is_an_orphan_and_a_zombie_is_none(self):
        child = self.start(programs.obedient(self.token))
        child.send_signal(signal.SIGSTOP)
        eventually(lambda: [one.state for one in self.judge.look().values()] == ["T"], "it to stop")
        self.assertEqual(len(self.judge.await_gone(0)), 1)
        child.kill()
        eventually(lambda: proc.look_up(child.pid).state == "Z", "a zombie")
        self.assertEqual(self.judge.await_gone(0), [])

    def test_bystanders_are_no_orphans(self):
        self.assertEqual(self.judge.await_gone(0), [])


class WrongKillsTest(Scene):
    def setUp(self):
        super().setUp()
        self.victim = self.round.start_bystander(programs.obedient(self.round.bystander_token))
        # It has its new name a moment before it has the arguments that it is known by.
        known = lambda: self.victim.pid in [one.pid for one in self.round.watch.look().values()]
        eventually(lambda: known() and proc.look_up(self.victim.pid).name == "sleep", "the victim")
        self.round.mark_bystanders()

    def verdict(self):
        self.round.verdict()
        return self.round.wrong_kills

    def test_nobody_was_hit(self):
        self.assertEqual(self.verdict(), [])

    def test_a_bystander_that_was_killed_is_a_wrong_kill(self):
        self.victim.send_signal(signal.SIGTERM)
        eventually(lambda: proc.look_up(self.victim.pid).state == "Z", "its end")
        [found] = self.verdict()
        self.assertIn(f"pid {self.victim.pid}, is gone", found)

    def test_a_bystander_that_was_stopped_is_a_wrong_kill(self):
        self.victim.send_signal(signal.SIGSTOP)
        eventually(lambda: proc.look_up(self.victim.pid).state == "T", "it to stop")
        [found] = self.verdict()
        self.assertIn("is stopped", found)


class SignalsTest(unittest.TestCase):
    def test_a_successor_of_the_pid_is_not_hit(self):
        child = subprocess.Popen(["sleep", "86400"])
        identity = proc.look_up(child.pid).identity
        stranger = (identity[0], identity[1] - 1)
        self.assertFalse(proc.send(stranger, signal.SIGKILL))
        self.assertEqual(proc.end([stranger]), [])
        self.assertIsNone(child.poll())
        self.assertEqual(proc.end([identity]), [])
        self.assertEqual(child.wait(), -signal.SIGKILL)


class OrderTest(unittest.TestCase):
    def test_every_case_comes_before_one_comes_again_and_the_seed_decides(self):
        names = list("abcdef")
        order = chaos.order(7, 12, names)
        self.assertEqual(sorted(order[:6]), names)
        self.assertEqual(sorted(order[6:]), names)
        self.assertEqual(order[:9], chaos.order(7, 9, names))
        self.assertNotEqual(order, chaos.order(8, 12, names))


if __name__ == "__main__":
    unittest.main()
