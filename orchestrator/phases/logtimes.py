"""When the bytes of the log files came: one "seconds offset" line a second at most, beside each log file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.phases.lines import append_line

GRAIN_S = 1.0
"""Bytes that came within this time share one entry."""

BLOCK = 1 << 16

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
        with contextlib.suppress(OSError):
            if last is None:
                path.parent.mkdir(exist_ok=True)
            append_line(path, b"%.3f %d" % (now, offset))


def read_marks(path: Path) -> Iterator[Mark]:
    """Read the entries in order of offset; lines that are torn are left out."""
    last = 0
    for mark in filter(None, map(_parse_mark, _read_lines(path))):
        if mark[1] >= last:
            last = mark[1]
            yield mark


def find_since(path: Path, moment: float) -> int | None:
    """Find the offset from which on bytes came at a moment or later; None where none did."""
    found = None
    for mark in filter(None, map(_parse_mark, _read_lines_back(path))):
        # From the end: a few minutes of a log of weeks are found at once.
        if mark[0] + GRAIN_S <= moment:
            break
        found = mark[1] if found is None else min(found, mark[1])
    return found


def _parse_mark(line: bytes) -> Mark | None:
    try:
        moment, offset = line.split()
        return float(moment), int(offset)
    except ValueError:
        return None


def _read_lines(path: Path) -> Iterator[bytes]:
    """Give the whole lines of a file, in blocks: kept open, the files of many ranks are more than a process may have."""
    place, rest = 0, b""
    while block := _read_block(path, place):
        place += len(block)
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def _read_lines_back(path: Path) -> Iterator[bytes]:
    """Give the whole lines of a file, the last one first."""
    try:
        place = path.stat().st_size
    except OSError:
        return
    # What follows the last newline is torn.
    rest, torn = b"", True
    while place > 0:
        begin = max(0, place - BLOCK)
        rest, *lines = (_read_block(path, begin)[: place - begin] + rest).split(b"\n")
        if torn and lines:
            lines.pop()
            torn = False
        yield from reversed(lines)
        place = begin
    if not torn:
        yield rest


def _read_block(path: Path, place: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(place)
            return file.read(BLOCK)
    except OSError:
        return b""
