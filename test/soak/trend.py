"""Whether a quantity grows: its slope, and whether that is more than chance.

What is measured goes up and down with the load, and what leaks stays. So time is cut into blocks, and
of each only the lower quartile counts: how much is there when little is going on. The slope is the median
of the slopes between all pairs of blocks (Theil and Sen), which a few odd ones do not move. Whether the
blocks rise more steadily than chance would have it is Kendall's test. Neither needs to know how the noise
is distributed.

A series may consist of several lives, as that of the guardian does after it was killed. Only blocks of one
life are compared with each other.
"""

import math
from typing import NamedTuple

BLOCKS = 24
# One-sided. Some twenty quantities are judged, so chance alone raises an alarm in one soak of fifty.
Z_LIMIT = 3.1


class Trend(NamedTuple):
    slope: float  # per second
    z: float
    blocks: int
    seconds: float

    @property
    def per_hour(self):
        return self.slope * 3600

    @property
    def growth(self):
        """In the time that was judged."""
        return self.slope * self.seconds

    @property
    def steady(self):
        return self.z > Z_LIMIT


def lower_quartile(values):
    return sorted(values)[(len(values) - 1) // 4]


def blocks_of(life, width):
    """(middle, lower quartile) of each whole block of a life's (time, value) points."""
    if not life:
        return []
    begun = life[0][0]
    parts = {}
    for at, value in life:
        parts.setdefault(int((at - begun) / width), []).append(value)
    whole = len(parts) - 1 if len(parts) > 1 and life[-1][0] - begun < len(parts) * width * 0.99 else len(parts)
    return [(begun + (index + 0.5) * width, lower_quartile(parts[index])) for index in sorted(parts)[:whole]]


def ties(values):
    counts = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return [count for count in counts.values() if count > 1]


def kendall(values):
    """Kendall's S and its variance without a trend."""
    n = len(values)
    s = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    variance = n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties(values))
    return s, variance / 18


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def trend(lives, seconds):
    """The trend of lives, each of (time, value) points, of a soak that was judged for so long. None if
    there is too little to say anything."""
    width = seconds / BLOCKS
    lives = [blocks_of(life, width) for life in lives]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for life in lives for i, earlier in enumerate(life) for later in life[i + 1 :]
    ]
    if len(slopes) < 6:
        return None
    tests = [kendall([value for _, value in life]) for life in lives]
    s, variance = sum(s for s, _ in tests), sum(variance for _, variance in tests)
    # S moves in steps of two; one is taken off, as is usual, so that few blocks do not prove too much.
    z = 0.0 if variance == 0 else (s - (s > 0) + (s < 0)) / math.sqrt(variance)
    return Trend(median(slopes), z, sum(map(len, lives)), seconds)
