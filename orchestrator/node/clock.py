"""The time of events: this machine's clock as it stood at the start, and from there on a clock that nobody sets."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime_s() -> float:
    """Give the seconds since boot, on Linux suspended ones included; no jump of the date moves it."""
    return time.clock_gettime(_CLOCK)


_BASE = time.time() - uptime_s()


def now() -> float:
    """Give the seconds since the epoch, as the clock at the start of this program goes on."""
    return _BASE + uptime_s()
