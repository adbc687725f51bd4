"""Children of a worker: none answers for it, none holds its lifeline."""

from __future__ import annotations

import os
import signal
import sys
import unittest

from support import Worker, client, descriptors, stop_and_wait

METHODS = ("fork", "spawn", "forkserver")
FAMILY = "import family, multiprocessing, os, signal, sys, time\n"

#: Forks a child that echoes lines of its stdin, and a parent that waits for ever.
FORK = """
import os, sys, time
print(os.getpid(), flush=True)
pid = os.fork()
if pid == 0:
    print(os.getpid(), flush=True)
    for line in sys.stdin: print('child', line.strip(), flush=True)
    os._exit(0)
time.sleep(60)
"""


class Fork(unittest.TestCase):
    def forked(self, options: str = "") -> tuple[Worker, int]:
        worker = Worker(self, client(options) + FORK, obey=False)
        worker.output.line()
        return worker, int(worker.output.line())

    def test_the_child_holds_nothing_of_the_clients(self) -> None:
        worker, child = self.forked()
        inode = f"socket:[{worker.lifeline_inode}]"
        self.assertIn(inode, descriptors(worker.process.pid))
        self.assertNotIn(inode, descriptors(child))
        # One pipe of the test's, the standard streams, and nothing that wakes the parent.
        self.assertEqual(len(descriptors(child)), 4, descriptors(child))

    def test_the_lifeline_closes_with_the_parent_although_the_child_lives(self) -> None:
        worker, _child = self.forked()
        worker.ping()
        worker.process.kill()
        self.assertTrue(worker.closed())
        worker.tell("still here")
        self.assertEqual(worker.output.line(), "child still here")

    def test_the_child_does_not_answer_for_a_stopped_parent(self) -> None:
        worker, _child = self.forked("check=lambda: True")
        worker.ping()
        stop_and_wait(worker.process)
        worker.send(b"PING:7\n")
        worker.tell("awake")
        self.assertEqual(worker.output.line(), "child awake")
        self.assertTrue(worker.silent())
        worker.signal(signal.SIGCONT)
        self.assertTrue(worker.pong().startswith(b"PONG:7:"))

    def test_the_child_has_the_signal_handlers_from_before(self) -> None:
        source = (
            "import os, sys, threading\n"
            "def kill(pid, number):\n"
            "    os.kill(pid, number)\n"
            "    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
            "def fork():\n"
            "    pid = os.fork()\n"
            "    while pid == 0: pass\n"
            "    return pid\n"
            "def in_thread(function, got):\n"
            "    t = threading.Thread(target=lambda: got.append(function())); t.start(); t.join()\n"
            "    return got[0]\n"
        )
        worker = Worker(self, source + client("on_shutdown=[lambda: print('hook')]"))
        self.assertEqual(worker.ask("kill(fork(), 15)"), -15)
        self.assertEqual(worker.ask("kill(in_thread(fork, []), 15)"), -15)
        self.assertTrue(worker.ping())

    def test_a_signal_that_comes_right_after_the_fork_is_not_lost(self) -> None:
        # Hooks run in the order of registration: this one before the client's own.
        source = (
            "import os\n"
            "os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), 15))\n"
            + client()
            + "pid = os.fork()\n"
            "if pid == 0: os._exit(3)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)\n"
        )
        worker = Worker(self, source, obey=False)
        self.assertEqual(worker.output.rest(), ["-15"])
        self.assertEqual(worker.status(), 0)

    def test_a_child_may_have_a_client_of_its_own(self) -> None:
        source = (
            "import os, sys, time\n" + client() + "if os.fork() == 0:\n"
            "    second = HeartbeatClient(beam_pid=os.getppid()).start()\n"
            "    print('second', flush=True)\n"
            "time.sleep(60)\n"
        )
        worker = Worker(self, source, obey=False)
        self.assertEqual(worker.output.line(), "second")
        worker.process.kill()
        self.assertTrue(worker.nobody_left())

    def test_a_child_that_exits_as_usual_runs_no_hooks(self) -> None:
        source = (
            "import os, sys\n" + client("on_shutdown=[lambda: print('hook')]")
            + "pid = os.fork()\n"
            "if pid == 0: sys.exit(3)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)\n"
        )
        worker = Worker(self, source, obey=False)
        self.assertEqual(worker.output.rest(), ["3"])
        self.assertEqual(worker.status(), 0)

    def test_a_child_does_not_wait_for_the_hooks_of_its_parent(self) -> None:
        source = (
            "import os, sys, time\n" + client("on_shutdown=[lambda: os.read(0, 1)]")
            + "client.shutdown(4); client.wait()\n"
            "pid = os.fork()\n"
            "if pid == 0: sys.exit(3)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)\n"
            "time.sleep(60)\n"
        )
        worker = Worker(self, source, obey=False)
        self.assertEqual(worker.output.line(), "3")
        assert worker.process.stdin
        worker.process.stdin.close()
        self.assertEqual(worker.status(), 4)

    def test_many_forks_beside_clients_that_come_and_go_leak_nothing(self) -> None:
        source = (
            "import os, threading\n"
            "from snakepit_bridge import HeartbeatClient\n"
            "going = True\n"
            "def come_and_go():\n"
            "    while going:\n"
            "        HeartbeatClient(signals='never').start().stop()\n"
            "def count():\n"
            "    return len(os.listdir('/proc/self/fd'))\n"
            "def forked():\n"
            "    r, w = os.pipe()\n"
            "    if os.fork() == 0:\n"
            "        os.write(w, bytes([count()])); os._exit(0)\n"
            "    os.wait(); n = os.read(r, 1)[0]; os.close(r); os.close(w)\n"
            "    return n\n"
        )
        worker = Worker(self, source, lifeline=False)
        before = worker.ask("forked()")
        worker.tell("t = threading.Thread(target=come_and_go); t.start()")
        self.assertEqual(worker.ask("max(forked() for _ in range(150))"), before)
        worker.tell("going = False; t.join()")
        self.assertEqual(worker.ask("forked()"), before)


class Multiprocessing(unittest.TestCase):
    def test_children_have_neither_the_descriptor_nor_the_variable(self) -> None:
        for method in METHODS:
            with self.subTest(method=method):
                worker = Worker(self, FAMILY + client())
                worker.tell(f"context = multiprocessing.get_context({method!r})")
                worker.tell("ours, theirs = context.Pipe()")
                worker.tell("child = context.Process(target=family.describe, args=(theirs,))")
                worker.tell("child.start(); theirs.close()")
                os_pid, variable, held = worker.ask("ours.recv()")
                self.assertNotEqual(os_pid, worker.process.pid)
                self.assertIsNone(variable)
                self.assertNotIn(f"socket:[{worker.lifeline_inode}]", held)
                worker.tell("child.terminate(); child.join()")
                self.assertEqual(worker.ask("child.exitcode"), -15)
                self.assertTrue(worker.ping())

    def test_a_client_in_a_child_does_not_take_the_parents_lifeline(self) -> None:
        # The child is made before the parent has adopted it, so the variable is still there.
        for method in METHODS:
            with self.subTest(method=method):
                worker = Worker(self, FAMILY + "from snakepit_bridge import HeartbeatClient\n")
                worker.tell(f"context = multiprocessing.get_context({method!r})")
                worker.tell("ours, theirs = context.Pipe()")
                worker.tell("child = context.Process(target=family.start_client, args=(theirs,))")
                worker.tell("child.start(); child.join()")
                self.assertEqual(worker.ask("ours.recv()"), (False, None))
                worker.tell("client = HeartbeatClient().start()")
                self.assertTrue(worker.ping("7").startswith(b"PONG:7:"))

    def test_a_child_that_watches_its_parent_ends_with_it(self) -> None:
        for method in METHODS:
            with self.subTest(method=method):
                worker = Worker(self, FAMILY + client())
                worker.tell(f"context = multiprocessing.get_context({method!r})")
                worker.tell("[context.Process(target=family.watched).start() for _ in 'ab']")
                self.assertEqual(worker.output.line(), "watching")
                self.assertEqual(worker.output.line(), "watching")
                worker.process.kill()
                # The end of the output is the end of the last process that has it.
                self.assertEqual(worker.output.rest(), ["gone", "gone"])

    def test_a_child_that_comes_too_late_to_watch_ends_at_once(self) -> None:
        source = (
            "import os, sys, time\n"
            "import snakepit_bridge\n"
            "gate, opener = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    os.close(opener)\n"
            "    os.read(gate, 1)\n"
            "    while os.getppid() == parent: pass\n"
            "    snakepit_bridge.watch_parent()\n"
            "    time.sleep(60)\n"
        )
        worker = Worker(self, "import os; parent = os.getpid()\n" + source, obey=False)
        self.assertEqual(worker.status(), 0)
        self.assertTrue(worker.nobody_left())


if not sys.platform.startswith("linux"):
    del Fork.test_the_child_holds_nothing_of_the_clients
    del Fork.test_many_forks_beside_clients_that_come_and_go_leak_nothing
    del Multiprocessing.test_children_have_neither_the_descriptor_nor_the_variable

if __name__ == "__main__":
    unittest.main()
