"""What the samples of a soak say, for each quantity."""

from typing import NamedTuple, Optional

import quantities
import trend

# Code is loaded, caches are filled, pools find their size.
WARM_UP = 0.5
# What a new guardian takes to have touched the memory that it works with.
GUARDIAN_WARM_UP_S = 20


class Finding(NamedTuple):
    quantity: quantities.Quantity
    # None: too few samples to say anything.
    trend: Optional[trend.Trend]

    @property
    def grows(self):
        one = self.trend
        return bool(one and one.steady and one.per_hour > self.quantity.per_hour and one.growth > self.quantity.least)

    @property
    def limit_per_hour(self):
        """The slope from which on it counts as growing, in the time that there was."""
        hourly = self.quantity.least * 3600 / self.trend.seconds if self.trend else 0
        return max(self.quantity.per_hour, hourly)

    def describe(self):
        unit, scale = self.quantity.unit, self.quantity.scale
        if self.trend is None:
            return "too short to say"
        said = f"{self.trend.per_hour / scale:+,.2f} {unit}".strip() + " per hour"
        return f"{said}: GROWS" if self.grows else said


def lives(samples, quantity, begun):
    """The points of a quantity since `begun`, those of each life by themselves."""
    found, life, since = [], None, None
    for sample in samples:
        value = sample.get(quantity.key)
        if value is None:
            continue
        if sample[quantity.life] != life:
            life, since = sample[quantity.life], sample["at"]
            found.append([])
        warm = since + (GUARDIAN_WARM_UP_S if quantity.life == "guardian" else 0)
        if sample["at"] >= max(begun, warm):
            found[-1].append((sample["at"], value))
    return [life for life in found if life]


def judge(samples):
    """A finding for each quantity that is judged, over what came after the warm-up."""
    if not samples:
        return []
    first, last = samples[0]["at"], samples[-1]["at"]
    begun = first + (last - first) * WARM_UP
    seconds = max(last - begun, 1)
    return [Finding(one, trend.trend(lives(samples, one, begun), seconds)) for one in quantities.JUDGED]
