"""Looks at what every process has used of the processors, once early: whoever is asked later need not wait between two looks."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Dict, List, Tuple

    Texts = Dict[int, bytes]

BUSY_SHARE = 0.25
"""Below this load a core nobody is looked for."""
OLDEST_S = 10.0
"""What was used before that says little of now."""
STAT_BYTES = 2048

_early: List[Tuple[float, Texts]] = []


def is_loaded() -> bool:
    """Tell whether there is so much load that somebody makes it."""
    return os.getloadavg()[0] > BUSY_SHARE * (os.cpu_count() or 1)


def look_early() -> None:
    """Take the first look, if it is to be of use."""
    if is_loaded():
        _early[:] = [(time.monotonic(), read_stats())]


def early_look() -> Tuple[float, Texts]:
    """Give the moment of the first look and what was seen; nothing where there was none of late."""
    if _early and time.monotonic() - _early[0][0] < OLDEST_S:
        return _early[0]
    return 0.0, {}


def read_stats() -> Texts:
    """Read /proc/PID/stat of every process.

    Not by probe_command and processes, which every start of the porter would have to load.
    """
    found: Texts = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            handle = os.open("/proc/%s/stat" % name, os.O_RDONLY)
        except OSError:
            continue  # it has ended
        try:
            found[int(name)] = os.read(handle, STAT_BYTES)
        except OSError:
            continue
        finally:
            os.close(handle)
    return found
