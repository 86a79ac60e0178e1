"""Which nodes of a run speak with this machine: when none does, it is this machine that is cut off, and nobody is lost."""

from __future__ import annotations

import threading
import time

RECENT_S = 25.0
"""A pump speaks every 5 s and a broken link is found within 18: whoever spoke in this time may still be in contact."""

CLEARLY_S = 6.0
"""A node whose last word came so much later than another's was reached when that one was not: pumps speak every 5 s."""


class Contact:
    """Shared by the readers of a run, each in a thread of its own."""

    def __init__(self, node_ranks: range) -> None:
        self._lock = threading.Lock()
        self._heard: dict[int, float] = dict.fromkeys(node_ranks, time.monotonic())
        """When each node that is still followed spoke last."""
        self._since = 0.0
        """When contact began again after nobody had spoken."""

    def note(self, node_rank: int) -> None:
        """Take a word of a node."""
        now = time.monotonic()
        with self._lock:
            if all(now - heard > RECENT_S for heard in self._heard.values()):
                self._since = now
            if node_rank in self._heard:
                self._heard[node_rank] = now

    def drop(self, node_rank: int) -> None:
        """Take out a node that has ended or is lost: it says nothing of the network any more."""
        with self._lock:
            self._heard.pop(node_rank, None)

    def is_lost(self, node_rank: int, broken_at: float, lost_after_s: float, *, stopping: bool) -> bool:
        """Tell whether a node that has been silent since a moment counts as lost by now.

        While no node of several speaks none is lost, unless the run is being stopped: nobody's peers could be stopped.
        """
        now = time.monotonic()
        with self._lock:
            others = [heard for rank, heard in self._heard.items() if rank != node_rank]
            since = self._since
        if now < max(broken_at, since) + lost_after_s:
            return False
        # Whose last word is as old as this node's may be cut off by the same break.
        spoke = broken_at + CLEARLY_S
        return stopping or not others or any(heard >= spoke and now - heard <= RECENT_S for heard in others)
