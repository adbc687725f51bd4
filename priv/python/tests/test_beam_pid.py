"""Without a lifeline: the process that is watched by its pid."""

from __future__ import annotations

import unittest

from support import DEADLINE, Worker, bystander, client

NO_PIDFD = "import os\nif hasattr(os, 'pidfd_open'): del os.pidfd_open\n"


class BeamPid(unittest.TestCase):
    def test_its_end_is_noticed_before_anybody_reaps_it(self) -> None:
        beam = bystander(self)
        worker = Worker(self, client(f"beam_pid={beam.pid}"), lifeline=False)
        beam.kill()
        self.assertEqual(worker.status(), 69)

    def test_its_end_is_noticed_without_pidfd(self) -> None:
        beam = bystander(self)
        worker = Worker(self, NO_PIDFD + client(f"beam_pid={beam.pid}"), lifeline=False)
        self.assertIsNone(worker.ask("client._process.fd"))
        beam.kill()
        beam.wait(DEADLINE)
        self.assertEqual(worker.status(), 69)

    def test_the_end_of_a_parent_is_noticed_without_pidfd_and_unreaped(self) -> None:
        # The worker is the child of a process that is killed and stays a zombie for a while.
        child = NO_PIDFD + client("beam_pid=os.getppid()") + "print('up', flush=True)\n"
        source = (
            "import subprocess, sys\n"
            f"child = {child + 'import time; time.sleep(60)'!r}\n"
            "subprocess.run([sys.executable, '-c', child], close_fds=False)\n"
        )
        beam = Worker(self, source, obey=False, lifeline=False)
        self.assertEqual(beam.output.line(), "up")
        beam.process.kill()
        self.assertTrue(beam.nobody_left())

    def test_one_that_is_gone_already_ends_the_worker_at_once(self) -> None:
        beam = bystander(self)
        beam.kill()
        beam.wait(DEADLINE)
        worker = Worker(
            self, client(f"beam_pid={beam.pid}") + "while True: pass", obey=False, lifeline=False
        )
        self.assertEqual(worker.status(), 69)

    def test_with_a_lifeline_it_is_not_watched(self) -> None:
        beam = bystander(self)
        worker = Worker(self, client(f"beam_pid={beam.pid}"))
        self.assertIsNone(worker.ask("client._process"))
        beam.kill()
        beam.wait(DEADLINE)
        self.assertTrue(worker.ping())


if __name__ == "__main__":
    unittest.main()
