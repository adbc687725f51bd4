"""How far a long run has come, and when it will be through."""

import time


def clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d}"


class Progress:
    def __init__(self, total=0):
        self.begin(total)

    def begin(self, total):
        self.total = total
        self.done = 0
        self.begun = time.monotonic()

    def advance(self, count=1):
        self.done += count

    def is_due(self, every=10):
        """Whether it is time for a line about it."""
        return self.done % every == 0 or self.done == self.total

    def __str__(self):
        elapsed = time.monotonic() - self.begun
        left = elapsed / self.done * (self.total - self.done) if self.done else 0
        width = len(str(self.total))
        return f"{self.done:{width}d}/{self.total}  {clock(elapsed)} gone, {clock(left)} to go"
