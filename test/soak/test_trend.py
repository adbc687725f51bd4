"""A verdict that cannot fail is worth nothing: it has to see what grows, and nothing else."""

import random
import unittest

import quantities
import trend
import verdict

SECONDS = 600


def noisy(rate, seed, seconds=SECONDS, noise=20.0, base=200.0):
    """One point a second: a slope, the ups and downs of a load, and an odd one now and then."""
    source = random.Random(seed)
    points, level = [], 0.0
    for at in range(seconds):
        # What is there in one second is mostly there in the next.
        level = 0.8 * level + source.gauss(0, noise * 0.6)
        odd = noise * 20 if source.random() < 0.01 else 0
        points.append((at, base + rate * at + level + odd))
    return points


def slope(points, seconds=SECONDS):
    return trend.trend([points], seconds)


class TrendTest(unittest.TestCase):
    def test_a_straight_line_has_its_slope(self):
        found = slope([(at, 3 + 0.5 * at) for at in range(SECONDS)])
        self.assertAlmostEqual(found.slope, 0.5, places=6)
        self.assertTrue(found.steady)

    def test_a_leak_is_found_below_the_ups_and_downs_of_a_load(self):
        for seed in range(50):
            found = slope(noisy(0.2, seed))
            self.assertTrue(found.steady, seed)
            self.assertAlmostEqual(found.slope, 0.2, delta=0.04)

    def test_noise_alone_is_seldom_a_trend(self):
        alarms = sum(slope(noisy(0, seed)).steady for seed in range(300))
        self.assertLessEqual(alarms, 3)

    def test_what_shrinks_does_not_grow(self):
        self.assertLess(slope(noisy(-0.1, 1)).z, 0)

    def test_a_constant_has_no_trend(self):
        found = slope([(at, 7) for at in range(SECONDS)])
        self.assertEqual((found.slope, found.z), (0, 0))

    def test_outliers_do_not_move_it(self):
        points = [(at, 1000 if at > SECONDS * 0.9 and at % 2 else 10) for at in range(SECONDS)]
        self.assertEqual(slope(points).slope, 0)

    def test_lives_are_not_compared_with_each_other(self):
        steps = [[(100 * life + at, 50 * life) for at in range(100)] for life in range(6)]
        self.assertEqual(trend.trend(steps, SECONDS).slope, 0)
        sawtooth = [[(100 * life + at, 0.5 * at) for at in range(100)] for life in range(6)]
        found = trend.trend(sawtooth, SECONDS)
        self.assertAlmostEqual(found.slope, 0.5, places=6)
        self.assertTrue(found.steady)

    def test_too_little_says_nothing(self):
        self.assertIsNone(slope([(0, 1), (1, 2)]))
        self.assertIsNone(trend.trend([], SECONDS))


def samples(grow, minutes=20):
    """Of a soak in which all but `grow` goes up and down around something."""
    seconds = minutes * 60
    series = {
        one.key: noisy(grow.get(one.key, 0), one.key, seconds, noise=one.least / 10, base=one.least * 10)
        for one in quantities.JUDGED
    }
    return [
        {"at": at, "beam": 1, "guardian": 2 + at // 300, **{key: points[at][1] for key, points in series.items()}}
        for at in range(seconds)
    ]


def growing(grow, minutes=20):
    return [one.quantity.key for one in verdict.judge(samples(grow, minutes)) if one.grows]


class VerdictTest(unittest.TestCase):
    def test_nothing_grows_where_nothing_does(self):
        self.assertEqual(growing({}), [])

    def test_each_quantity_is_found_by_itself_at_three_times_its_limit(self):
        for one in quantities.JUDGED:
            limit = max(one.per_hour / 3600, one.least / 600)
            self.assertEqual(growing({one.key: 3 * limit}), [one.key])

    def test_what_is_tolerated_is_not_found(self):
        for one in quantities.JUDGED:
            self.assertEqual(growing({one.key: 0.3 * one.per_hour / 3600}), [])

    def test_growth_that_ends_with_the_warm_up_is_none(self):
        found = samples({})
        for sample in found:
            sample["atoms"] = 10_000 + min(sample["at"], 500)
        self.assertFalse([one for one in verdict.judge(found) if one.grows])

    def test_no_samples_no_findings(self):
        self.assertEqual(verdict.judge([]), [])

    def test_a_soak_that_was_too_short_says_so(self):
        self.assertTrue(all(one.trend is None for one in verdict.judge(samples({})[:3])))


if __name__ == "__main__":
    unittest.main()
