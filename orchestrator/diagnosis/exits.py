"""How a process ended, in the words of people."""

from __future__ import annotations

import signal

CRASHES = frozenset({4, 6, 7, 8, 11})
"""Signals by which a process ends itself: it may have said why."""


def signal_name(number: int | None) -> str | None:
    """Name a signal as people do."""
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
