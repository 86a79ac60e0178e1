"""When the bytes of the log files came: one "seconds offset" line a second at most, beside each log file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

GRAIN_S = 1.0
"""Bytes that came within this time share one entry."""

Mark = tuple[float, int]
"""From this moment on came the bytes from this offset on."""


class TimeWriter:
    """Notes when bytes come; what it cannot write costs a look-up by time, never a log."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._last: dict[Path, float] = {}

    def note(self, path: Path, offset: int) -> None:
        """Note that bytes from an offset on came now."""
        now = self._now()
        last = self._last.get(path)
        # A clock that was set back must not silence the index until it has caught up.
        if last is not None and last <= now < last + GRAIN_S:
            return
        self._last[path] = now
        line = f"{now:.3f} {offset}\n"
        with contextlib.suppress(OSError):
            if last is None:
                path.parent.mkdir(exist_ok=True)
                line = ("\n" if _is_torn(path) else "") + line
            with path.open("a", encoding="ascii") as file:
                file.write(line)


def _is_torn(path: Path) -> bool:
    """Tell whether a controller died, or the disk was full, in the middle of a line."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def read_marks(path: Path) -> Iterator[Mark]:
    """Read the entries in order of offset; lines that are torn are left out."""
    offset = 0
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            for line in file:
                mark = _parse_mark(line)
                if mark is not None and mark[1] >= offset:
                    offset = mark[1]
                    yield mark
    except OSError:
        return


def _parse_mark(line: str) -> Mark | None:
    try:
        moment, offset = line.split()
        return (float(moment), int(offset)) if line.endswith("\n") else None
    except ValueError:
        return None


def find_since(path: Path, moment: float) -> int | None:
    """Find the offset from which on bytes came at a moment or later; None where none did."""
    return next((offset for at, offset in read_marks(path) if at + GRAIN_S > moment), None)
