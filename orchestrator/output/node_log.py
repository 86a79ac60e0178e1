"""The log of one node for people: its agent and ranks merged by whole line, bytes unchanged."""

from __future__ import annotations

from pathlib import Path

from orchestrator.light_dataclass import dataclass
from orchestrator.output.blocks import has_longer_line, prefix_lines
from orchestrator.output.wording import render_size

PIECE_BYTES = 64 * 1024
"""A longer line is written in pieces of this length, so that memory stays bounded."""


@dataclass
class _Source:
    """One stream of one rank: what of its last line has come."""

    held: bytes = b""
    continued: bool = False
    """Pieces of the line in hand have been written."""


class NodeLogWriter:
    """Write lines as "[rank 3] text"; the pieces of an overlong line after its first begin with "[rank 3 …] "."""

    def __init__(self, path: Path) -> None:
        """Open the file to append; what it holds stays."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: each feed is one write, and people follow the file while it grows.
        self._file = path.open("ab", buffering=0)
        self.size = self._file.tell()
        """Of the file, in bytes."""
        self._sources: dict[tuple[str, str], _Source] = {}

    def feed(self, label: str, data: bytes, stream: str = "out", there: int = 0) -> None:
        """Take what a source wrote, cut anywhere; a label's streams are kept apart until their lines end.

        Of what that makes, so many bytes are in the file already.
        """
        source = self._sources.setdefault((label, stream), _Source())
        block, newline, rest = data.rpartition(b"\n")
        parts: list[bytes] = []
        if newline:
            block = source.held + block
            if not source.continued and not has_longer_line(block, PIECE_BYTES):
                parts.append(prefix_lines(block, f"[{label}] ".encode()))
            else:
                _write_lines(parts, label, source, block.split(b"\n"))
            source.held = rest
        else:
            source.held += rest
        source.held = _write_pieces(parts, label, source, source.held)
        if parts:
            self._write((parts[0] if len(parts) == 1 else b"".join(parts))[there:])

    def drop(self, label: str, size: int, stream: str = "out", there: int = 0) -> None:
        """Tell that a part of a source is missing; what was held of its line ends here. See feed for `there`."""
        source = self._sources.setdefault((label, stream), _Source())
        parts: list[bytes] = []
        if source.held:
            _write_line(parts, label, source, source.held)
        source.held, source.continued = b"", True
        _write_line(parts, label, source, render_dropped(size))
        self._write(b"".join(parts)[there:])

    def resume(self, label: str, held: bytes, stream: str = "out", *, continued: bool = False) -> None:
        """Go on after a writer that was killed: what of a source's last line it had and did not write, after what it did."""
        self._sources[label, stream] = _Source(held=held, continued=continued)

    def flush(self) -> None:
        """Write the lines that never ended."""
        parts: list[bytes] = []
        for (label, _), source in self._sources.items():
            if source.held:
                _write_line(parts, label, source, source.held)
            source.held, source.continued = b"", False
        self._write(b"".join(parts))

    def close(self, *, over: bool = True) -> None:
        """Close the file; when all is over, write what is left: else whoever goes on does it."""
        if not self._file.closed:
            if over:
                self.flush()
            self._file.close()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = self._file.write(view)
            self.size += written
            view = view[written:]


def render_dropped(size: int) -> bytes:
    """Render what stands in place of bytes that a node dropped before they could be fetched."""
    return f"({render_size(size)} were dropped here)".encode()


def _write_lines(parts: list[bytes], label: str, source: _Source, lines: list[bytes]) -> None:
    for line in lines:
        held = _write_pieces(parts, label, source, line)
        _write_line(parts, label, source, held)
        source.continued = False


def _write_pieces(parts: list[bytes], label: str, source: _Source, line: bytes) -> bytes:
    """Write full pieces of a line that is longer than one, and return the rest."""
    start = 0
    while len(line) - start > PIECE_BYTES:
        _write_line(parts, label, source, line[start : start + PIECE_BYTES])
        source.continued = True
        start += PIECE_BYTES
    return line[start:] if start else line


def _write_line(parts: list[bytes], label: str, source: _Source, text: bytes) -> None:
    mark = " …" if source.continued else ""
    parts += (f"[{label}{mark}] ".encode(), text, b"\n")
