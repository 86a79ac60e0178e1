"""How a process ended, in the words of people."""

from __future__ import annotations

import signal


def signal_name(number: int | None) -> str | None:
    """Name a signal as people do."""
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
