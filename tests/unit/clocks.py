"""A clock that stands still until a test moves it."""

from __future__ import annotations


class Clock:
    """Stands in for the module `time` where only `monotonic` is read."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now
