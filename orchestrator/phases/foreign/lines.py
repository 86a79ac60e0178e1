"""Goes through a log of any size in bounded memory: its ends line by line, its middle only where something could matter."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

CHUNK = 1 << 20
HEAD = 2 << 20
TAIL = 8 << 20
WHOLE = 16 << 20
"""A file up to this size is read line by line from end to end."""
MOST_MIDDLE = 8 << 20
"""Of the middle no more is read: where every line could matter, the ends tell enough."""
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

PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
LOOKED_AT = 4096
STRANGE = 0.2
_WIDE = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_COLOR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_NO_TEXT = re.compile(r"[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f\ufffd]")

Part = tuple[int, list[str]]
"""The number of the first line, and the lines."""


def find_packing(path: Path) -> str:
    """Name what a file is that holds no text: how it was packed, or "binary"; empty for a log.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(LOOKED_AT)
    if packed := next((name for magic, name in PACKED.items() if head.startswith(magic)), ""):
        return packed
    if _find_wide(head):
        return ""
    # A log that was cut at its beginning while it was written holds NULs there, and is one all the same.
    text = head.replace(b"\0", b"").decode("utf-8", "replace")
    return "binary" if len(_NO_TEXT.findall(text)) > STRANGE * len(text) else ""


def _find_wide(head: bytes) -> str:
    """Name the encoding of text of two bytes a character; the mark alone may be the beginning of anything."""
    return _WIDE.get(head[:2], "") if head.count(b"\0") * 4 >= len(head) else ""


def _read_chunks(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Give the bytes of a file with where they begin and end; text of two bytes a character, as Windows writes it, as UTF-8."""
    done = 0
    decoder: codecs.IncrementalDecoder | None = None
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            at, done = done, done + len(chunk)
            if at == 0 and (wide := _find_wide(chunk[:LOOKED_AT])):
                decoder = codecs.getincrementaldecoder(wide)("replace")
                chunk = chunk[2:]
            yield at, done, decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk


def read_parts(path: Path) -> Iterator[Part]:
    """Give the lines of a file in parts, each with the number of its first line; dull parts are left out.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    number, until, left = 1, 0, MOST_MIDDLE
    held = b""
    for at, done, chunk in _read_chunks(path):
        whole, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            held = (held + chunk)[:LONGEST]
            continue
        data, held = held + whole, rest
        if size <= WHOLE or at < HEAD or done > size - TAIL:
            yield number, [_clean(line) for line in data.split(b"\n")]
        elif left > 0:
            windows, until = _find_windows(data, until)
            left -= sum(min(end, len(data)) - start for start, end in windows)
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
    line = line[:LONGEST].rstrip(b"\r").lstrip(b"\0").removeprefix(codecs.BOM_UTF8)
    if b"\x1b" in line:
        line = _COLOR.sub(b"", line)
    if b"\r" in line:
        # A progress bar that overwrote itself: its last state, and what followed.
        line = line.rpartition(b"\r")[2] or line
    return line.decode("utf-8", "replace")
