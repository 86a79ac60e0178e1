"""Goes through a log of any size in bounded memory: its ends line by line, its middle only where something could matter."""

from __future__ import annotations

from collections.abc import Iterator
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

Part = tuple[int, list[str]]
"""The number of the first line, and the lines."""


def read_parts(path: Path) -> Iterator[Part]:
    """Give the lines of a file in parts, each with the number of its first line; dull parts are left out.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    number, done = 1, 0
    held = b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            at, done = done, done + len(chunk)
            whole, newline, rest = chunk.rpartition(b"\n")
            if not newline:
                held = (held + chunk)[:LONGEST]
                continue
            data, held = held + whole, rest
            lines = data.count(b"\n") + 1
            if size <= WHOLE or at < HEAD or done > size - TAIL or any(word in data for word in WORDS):
                yield number, [_clean(line) for line in data.split(b"\n")]
            number += lines
    if held:
        yield number, [_clean(held)]


def _clean(line: bytes) -> str:
    line = line[:LONGEST].rstrip(b"\r")
    if b"\r" in line:
        # A progress bar that overwrote itself: its last state, and what followed.
        line = line.rpartition(b"\r")[2] or line
    return line.decode("utf-8", "replace")
