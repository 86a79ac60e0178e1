"""Waiting until nothing of a run is left on any node."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from cluster import Process

from .launches import POLL_S
from .nodes import Nodes
from .timing import BenchError


class Emptiness:
    """When each node had only the processes again that it had before."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self._before: Mapping[int, frozenset[Process]] = nodes.cluster.process_tables()
        self._full = set(self._before)

    def is_reached(self) -> bool:
        """Nothing is left on any node; one that was empty is not looked at again."""
        self._full = {k for k in self._full if self._list_new(k)}
        return not self._full

    def is_free_of(self, word: str) -> bool:
        """No process on any node has a word in its own."""
        return not any(word in each.command for k in self._before for each in self._list_new(k))

    def clear(self) -> None:
        """Kill what is left, as by hand."""
        for k in self._before:
            for process in self._list_new(k):
                self.nodes.cluster.exec(k, ["kill", "-9", str(process.pid)])
        watch({"empty": self.is_reached}, 20)

    def _list_new(self, k: int) -> frozenset[Process]:
        return self.nodes.cluster.process_table(k) - self._before[k]


def watch(conditions: Mapping[str, Callable[[], bool]], deadline_s: float) -> dict[str, float]:
    """Look at several conditions in turn until each has held once, and give the moments."""
    end = time.monotonic() + deadline_s
    moments: dict[str, float] = {}
    while left := [name for name in conditions if name not in moments]:
        for name in left:
            if conditions[name]():
                moments[name] = time.time()
        if time.monotonic() > end:
            raise BenchError(f"not within {deadline_s:g} s: {', '.join(left)}")
        time.sleep(POLL_S)
    return moments
