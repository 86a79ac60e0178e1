"""Fetches what was missed while the disk of the launch host was full, once it takes bytes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.phases.logstore import LogStore

FIRST_S = 1.0
LAST_S = 30.0
"""Pauses between two tries grow to this: whoever frees a disk does so in minutes."""


class CatchUp:
    """Watches one node's log files here and has the node send again what they lack."""

    def __init__(self, store: LogStore, send: Callable[[Mapping[str, Any]], None]) -> None:
        self._store = store
        self._send = send
        self._next = 0.0
        self._pause_s = FIRST_S

    def look(self, now: float) -> bool:
        """Try when it is time to; True when the disk here has space again and the node was asked."""
        if now < self._next:
            return False
        if not self._store.behind:
            self._next, self._pause_s = now + FIRST_S, FIRST_S
            return False
        self._next = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LAST_S)
        if not self._store.takes_more():
            return False
        self._send({"op": "offsets", "offsets": self._store.missed()})
        return True
