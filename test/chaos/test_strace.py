"""What strikes has to strike, where it is told to, and say whether it did."""

import itertools
import os
import subprocess
import tempfile
import unittest

import points
import tracer


class PointsTest(unittest.TestCase):
    def test_a_point_is_written_as_it_is_read(self):
        for text in ("spawn:guardian:clone:3", "stop:beam/1_scheduler:write:1+:ENOSPC"):
            self.assertEqual(str(points.Point.parse(text)), text)
        with self.assertRaises(ValueError):
            points.Point.parse("spawn:guardian")

    def test_a_call_is_struck_at_every_count_or_at_ever_fewer(self):
        every = itertools.islice(points.counts(True), 12)
        self.assertEqual(list(every), list(range(1, 13)))
        fewer = list(itertools.islice(points.counts(False), 12))
        self.assertEqual(fewer[:4], [1, 2, 3, 4])
        gaps = [after - before for before, after in zip(fewer, fewer[1:])]
        self.assertEqual(gaps, sorted(gaps))
        self.assertGreater(gaps[-1], 10)

    def test_what_a_guardian_does_is_struck_at_every_count(self):
        rows = list(points.rows("stop", "guardian", "openat", 300, False))
        self.assertEqual([row.fault for row in rows], [None, *points.FAULTS["openat"]])
        self.assertEqual(rows[0].expected(), 300)
        self.assertEqual(str(next(rows[1].points())), "stop:guardian:openat:1+:EMFILE")

    def test_a_beam_that_waits_is_not_struck_for_that(self):
        self.assertEqual(list(points.rows("stop", "beam/1_scheduler", "futex", 9, False)), [])
        self.assertEqual(list(points.rows("stop", "beam/1_aux", "write", 9, False)), [])
        self.assertNotEqual(list(points.rows("stop", "beam/1_scheduler", "write", 9, False)), [])


class TracerTest(unittest.TestCase):
    def setUp(self):
        why = tracer.permitted()
        if why:
            self.skipTest(why)
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.trace = os.path.join(self.scratch.name, "trace")

    def cat(self, point):
        """A process that answers each line with a write, traced; what it answered to three of them."""
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.kill)
        answers = 0
        with tracer.Tracer(self.trace, [child.pid], point.injection() if point else ()) as traced:
            for _ in range(3):
                try:
                    child.stdin.write(b"x\n")
                    child.stdin.flush()
                except BrokenPipeError:
                    break
                answers += child.stdout.readline() == b"x\n"
        try:
            child.stdin.close()
        except BrokenPipeError:
            pass
        return answers, traced, child.wait()

    def test_it_kills_at_the_call_and_not_before_or_after(self):
        answers, traced, status = self.cat(points.Point.parse("x:y:write:2"))
        self.assertEqual((answers, status, traced.struck()), (1, -9, True))

    def test_it_lets_a_call_fail(self):
        answers, traced, status = self.cat(points.Point.parse("x:y:write:1:ENOSPC"))
        self.assertEqual((answers, status, traced.struck()), (0, 1, True))

    def test_it_says_that_the_call_did_not_come(self):
        answers, traced, status = self.cat(points.Point.parse("x:y:write:4"))
        self.assertEqual((answers, status, traced.struck()), (3, 0, False))

    def test_it_counts(self):
        _, traced, _ = self.cat(None)
        self.assertEqual(traced.calls()[(None, "write")], 3)


if __name__ == "__main__":
    unittest.main()
