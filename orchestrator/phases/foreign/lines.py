"""Goes through a log of any size in bounded memory: its ends line by line, its middle only where something could matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

CHUNK = 1 << 20
HEAD = 2 << 20
TAIL = 8 << 20
WHOLE = 16 << 20
"""A file up to this size is read line by line from end to end."""
LONGEST = 16 << 10
"""Of a longer line the beginning is taken."""
WORDS = (
    b"Traceback (most",
    b"exitcode",
    b"Fatal Python",
    b"terminate called",
    b"Killed",
    b"death signal",
    b"Watchdog caught",
    b"last enqueued",
    b"monitoredBarrier",
    b"Segmentation fault",
    b"Bus error",
    b"core dumped",
    b"mismatch between collectives",
)
"""What the middle of a log must hold to be worth a closer look."""

BEFORE, AFTER = 4 << 10, 64 << 10
"""So much around such a word is read: the lines that led to it, and a traceback with all of its frames."""

Part = tuple[int, list[str]]
"""The number of the first line, and the lines."""


def read_parts(path: Path) -> Iterator[Part]:
    """Give the lines of a file in parts, each with the number of its first line; dull parts are left out.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    number, done, until = 1, 0, 0
    held = b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            at, done = done, done + len(chunk)
            whole, newline, rest = chunk.rpartition(b"\n")
            if not newline:
                held = (held + chunk)[:LONGEST]
                continue
            data, held = held + whole, rest
            if size <= WHOLE or at < HEAD or done > size - TAIL:
                yield number, [_clean(line) for line in data.split(b"\n")]
            else:
                windows, until = _find_windows(data, until)
                yield from _cut_out(data, windows, number)
            number += data.count(b"\n") + 1
    if held:
        yield number, [_clean(held)]


def _find_windows(data: bytes, until: int) -> tuple[list[tuple[int, int]], int]:
    """Find what is worth a look in a part of the middle, and how much of the next part still is."""
    places = sorted(place for word in WORDS for place in _find_all(data, word))
    windows = [(0, until)] if until > 0 else []
    for place in places:
        start, end = max(0, place - BEFORE), place + AFTER
        if windows and start <= windows[-1][1]:
            windows[-1] = (windows[-1][0], max(end, windows[-1][1]))
        else:
            windows.append((start, end))
    return windows, max(0, windows[-1][1] - len(data)) if windows else 0


def _find_all(data: bytes, word: bytes) -> Iterator[int]:
    place = data.find(word)
    while place >= 0:
        yield place
        place = data.find(word, place + AFTER // 2)


def _cut_out(data: bytes, windows: Sequence[tuple[int, int]], number: int) -> Iterator[Part]:
    """Give the whole lines of each window."""
    for window_start, window_end in windows:
        start = data.rfind(b"\n", 0, window_start) + 1
        end = data.find(b"\n", window_end)
        lines = data[start : end if end >= 0 else len(data)].split(b"\n")
        yield number + data.count(b"\n", 0, start), [_clean(line) for line in lines]


def _clean(line: bytes) -> str:
    line = line[:LONGEST].rstrip(b"\r")
    if b"\r" in line:
        # A progress bar that overwrote itself: its last state, and what followed.
        line = line.rpartition(b"\r")[2] or line
    return line.decode("utf-8", "replace")
