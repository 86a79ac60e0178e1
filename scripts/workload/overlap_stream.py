"""Reads the events of a Chrome trace one by one, so that a trace of gigabytes needs no more memory than a small one."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK = 1 << 22
LARGEST_VALUE = 1 << 26
"""No event is longer, in characters: where one seems to be, the trace is broken."""
SNIFFED = 1 << 16
GZIP_MAGIC = b"\x1f\x8b"
BLANK = re.compile(r"[ \t\n\r]*")
COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*(?=[^ \t\n\r])")
NUMBER = re.compile(r"[-+.0-9eE]*")
# Profilers have written names with raw control characters in them.
DECODER = json.JSONDecoder(strict=False)
READ_ERRORS = (OSError, EOFError, zlib.error)


class TraceError(ValueError):
    """A trace that cannot be read, told with its file."""


class _Text:
    """The text of a file, of which only a piece is held."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0

    def _read_more(self) -> bool:
        chunk = self._file.read(CHUNK)
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return bool(chunk)

    def peek(self) -> str:
        """Show the next sign that is no blank; empty at the end."""
        while True:
            found = BLANK.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                return ""

    def take(self, sign: str) -> None:
        """Step over a sign that must come now."""
        found = self.peek()
        if found != sign:
            raise TraceError(f"{sign!r} was expected, {found!r} came" if found else "it ends in the middle")
        self._at += 1

    def take_value(self) -> Any:
        """Read one whole JSON value."""
        self.peek()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > LARGEST_VALUE:
                    raise TraceError(f"a value that is no JSON: {error.msg}") from None
                if not self._read_more():
                    raise TraceError(f"it ends in the middle or is no JSON: {error.msg}") from None
                continue
            # What reaches to the end of the piece that is held may be the first half of a number: 0, 0. and 0.5e- of 0.5e-3.
            if NUMBER.fullmatch(self._text, self._at) and self._read_more():
                continue
            self._at = end
            return value

    def take_held_values(self) -> Iterator[Any]:
        """Read the values of a list that are wholly held, each with its comma: the fast way through millions."""
        text, at, decode, comma = self._text, self._at, DECODER.raw_decode, COMMA.match
        while True:
            try:
                value, end = decode(text, at)
            except json.JSONDecodeError:
                return
            found = comma(text, end)
            if found is None:
                return
            self._at = at = found.end()
            yield value


def stream_trace(path: Path, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Read a trace's events one by one, plain or gzipped; what else it holds is put into about, TraceError if broken."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        opener: Any = gzip.open if zipped else open
        with opener(path, "rt", encoding="utf-8", errors="replace") as file:
            yield from _stream(_Text(file), about)
    except READ_ERRORS as error:
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None


def _stream(text: _Text, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    first = text.peek()
    if first == "[":
        yield from _stream_list(text)
        return
    if first != "{":
        raise TraceError("it is no Chrome trace" if first else "it is empty")
    text.take("{")
    found = False
    while text.peek() != "}":
        key = text.take_value()
        text.take(":")
        if key == "traceEvents":
            found = True
            yield from _stream_list(text)
        else:
            about[str(key)] = text.take_value()
        if text.peek() != "}":
            text.take(",")
    if not found:
        raise TraceError("it is no Chrome trace: it has no traceEvents")


def _stream_list(text: _Text) -> Iterator[dict[str, Any]]:
    text.take("[")
    while text.peek() != "]":
        for value in text.take_held_values():
            if isinstance(value, dict):
                yield value
        value = text.take_value()
        if isinstance(value, dict):
            yield value
        if text.peek() != "]":
            text.take(",")
    text.take("]")


def looks_like_trace(path: Path) -> bool:
    """Tell a trace from other JSON by its beginning; one that cannot be read looks like one, so that it is told."""
    try:
        with path.open("rb") as raw:
            begin = raw.read(SNIFFED)
        if begin.startswith(GZIP_MAGIC):
            begin = zlib.decompressobj(wbits=31).decompress(begin, SNIFFED)
    except READ_ERRORS:
        return True
    return b'"traceEvents"' in begin or b'"schemaVersion"' in begin
