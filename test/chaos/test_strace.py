"""What strikes has to strike, where it is told to, and say whether it did."""

import itertools
import os
import subprocess
import tempfile
import time
import unittest

import points
import tracer


class PointsTest(unittest.TestCase):
    def test_a_point_is_written_as_it_is_read(self):
        for text in ("spawn:guardian:clone:3", "stop:beam/1_scheduler:write:1+:ENOSPC", "stop:guardian:wait4:2:delay_exit+kill"):
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

    def test_a_call_that_returns_is_delayed_before_and_after(self):
        rows = list(points.delays("stop", "guardian", "openat", 300, False))
        both = [delay + kill for delay in points.DELAYS for kill in ("", points.KILL)]
        self.assertEqual([row.fault for row in rows], both)
        self.assertEqual([row.fault for row in points.delays("reaping", "guardian", "openat", 3, False)], points.DELAYS)
        self.assertEqual(rows[0].expected(), 300)
        self.assertEqual(str(next(rows[0].points())), "stop:guardian:openat:1:delay_enter")
        exits = points.delays("reaping", "child", "exit_group", 1, False)
        self.assertEqual([row.fault for row in exits], ["delay_enter"])
        self.assertEqual(list(points.delays("stop", "beam/1_scheduler", "futex", 9, False)), [])

    def test_who_is_killed_meanwhile_makes_no_difference_to_the_call(self):
        alone, killed = (points.Point.parse(f"stop:beam:write:1:delay_enter{kill}") for kill in ("", points.KILL))
        self.assertEqual(alone.injection(), killed.injection())
        self.assertEqual((alone.kills, killed.kills), (False, True))
        self.assertEqual((alone.only_delays, killed.only_delays), (True, False))
        self.assertFalse(alone.on_files() or killed.on_files())

    def test_a_part_of_the_points_is_the_same_for_the_same_seed(self):
        every = [row for call in ("openat", "read") for row in points.rows("stop", "guardian", call, 30, False)]

        def some(limit, seed):
            return [str(point) for row in points.sample(every, limit, seed) for point in row.points()]

        everything = some(10_000, 1)
        self.assertEqual(len(everything), sum(row.expected() for row in every))
        self.assertEqual(len(set(everything)), len(everything))
        self.assertEqual(len(some(20, 1)), 20)
        self.assertEqual(some(20, 1), some(20, 1))
        self.assertNotEqual(some(20, 1), some(20, 2))
        self.assertLess(set(some(20, 1)), set(everything))
        kinds = {text.rpartition(":")[0] for text in some(len(every), 1)}
        self.assertGreater(len(kinds), len(every) // 2)
        self.assertTrue(all(row.expected() == 1 for row in points.sample(every, len(every), 1)))

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
        self.times = []
        with tracer.Tracer(self.trace, [child.pid], point.injection() if point else ()) as traced:
            for _ in range(3):
                begun = time.monotonic()
                try:
                    child.stdin.write(b"x\n")
                    child.stdin.flush()
                except BrokenPipeError:
                    break
                line = child.stdout.readline()
                answers += line == b"x\n"
                self.times.append(time.monotonic() - begun)
                if not line:
                    # Its files are closed, so it is about to end. Who lets go of it before misses that.
                    child.wait(tracer.PATIENCE)
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

    def test_it_lets_a_call_take_long_before_it_and_after_it(self):
        # The second answer comes late, or its write does not return and so the third one does.
        for how, late in (("delay_enter", 1), ("delay_exit", 2)):
            answers, traced, status = self.cat(points.Point.parse(f"x:y:write:2:{how}"))
            self.assertEqual((answers, status, traced.struck()), (3, 0, True), how)
            self.assertGreaterEqual(self.times[late], 0.9 * points.DELAY_US / 1e6, how)
            self.assertEqual(max(self.times), self.times[late], how)

    def test_it_says_that_a_delay_did_not_come(self):
        answers, traced, status = self.cat(points.Point.parse("x:y:write:4:delay_exit"))
        self.assertEqual((answers, status, traced.struck()), (3, 0, False))

    def test_it_says_that_the_call_did_not_come(self):
        answers, traced, status = self.cat(points.Point.parse("x:y:write:4"))
        self.assertEqual((answers, status, traced.struck()), (3, 0, False))

    def test_it_counts(self):
        _, traced, _ = self.cat(None)
        self.assertEqual(traced.calls()[(None, "write")], 3)


if __name__ == "__main__":
    unittest.main()
