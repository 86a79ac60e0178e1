"""Reads the log files of an experiment directory: chosen ones, from a moment on, in the order in which they came."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.light_dataclass import dataclass
from orchestrator.output.node_log import render_dropped
from orchestrator.phases.loggaps import Gap, read_gaps
from orchestrator.phases.logtimes import find_since, read_marks
from orchestrator.plan.paths import ExperimentPaths

CHUNK = 1 << 17
LINE_BYTES = 1 << 16
"""So far back the beginning of a line is looked for."""


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """One stream of one rank (None: of the agent) here."""

    path: Path
    times: Path
    gaps: Path
    node_rank: int
    rank: int | None
    stream: str
    name: str = ""
    """What its node calls it."""


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Bytes that the node dropped before they could be fetched."""

    size: int
    in_line: bool
    """The line before it did not end."""


Piece = bytes | Dropped


def render_piece(piece: Piece) -> bytes:
    """Give the bytes for a screen: of what was dropped, one line that tells so."""
    return piece if isinstance(piece, bytes) else b"\n" * piece.in_line + render_dropped(piece.size) + b"\n"


def list_files(plan: Mapping[str, Any], paths: ExperimentPaths) -> list[LogFile]:
    """List the log files of a run by the plan in its record: each node's agent, then its ranks."""
    files = []
    for node in plan["nodes"]:
        node_rank, first = int(node["node_rank"]), int(node["first_rank"])
        sources: list[tuple[int | None, str, Path, Path]] = [
            (None, "agent", paths.agent_out(node_rank), paths.agent_err(node_rank)),
            *(
                (first + local, str(local), paths.rank_out(first + local), paths.rank_err(first + local))
                for local in range(int(node["processes"]))
            ),
        ]
        for rank, stem, out, err in sources:
            for stream, path in (("out", out), ("err", err)):
                files.append(
                    LogFile(
                        path=path,
                        times=paths.log_times(path.name),
                        gaps=paths.gaps_jsonl,
                        node_rank=node_rank,
                        rank=rank,
                        stream=stream,
                        name=f"{stem}.{stream}",
                    )
                )
    return files


def choose_files(
    files: Sequence[LogFile], ranks: frozenset[int] | None, nodes: frozenset[int] | None, stream: str
) -> list[LogFile]:
    """Keep the files of these ranks (None: all) on these nodes; named nodes are shown with their agents."""
    return [
        file
        for file in files
        if (stream in ("both", file.stream))
        and (nodes is None or file.node_rank in nodes)
        and (nodes is not None if file.rank is None else ranks is None or file.rank in ranks)
    ]


class LogTail:
    """Reads one log file from an offset on, as far as it goes."""

    def __init__(self, file: LogFile, offset: int = 0) -> None:
        self.file = file
        self.offset = offset
        self._in_line = False
        self._gaps: list[Gap] = read_gaps(file.gaps).get(file.path.name, [])

    def pieces(self, end: int | None = None) -> Iterator[Piece]:
        """Give what is there up to an offset, or up to the end of the file."""
        try:
            handle = os.open(self.file.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            size = os.fstat(handle).st_size
            if size < self.offset:
                # The run was started anew with empty logs.
                self.offset, self._in_line = 0, False
                self._read_gaps()
            yield from self._pieces(handle, size if end is None else min(size, end))
        finally:
            os.close(handle)

    def _pieces(self, handle: int, end: int) -> Iterator[Piece]:
        while self.offset < end:
            start, behind = next((gap for gap in self._gaps if gap[1] > self.offset), (end, end))
            if start <= self.offset:
                yield Dropped(size=behind - self.offset, in_line=self._in_line)
                self.offset, self._in_line = behind, False
                continue
            data = os.pread(handle, min(CHUNK, start - self.offset, end - self.offset), self.offset)
            if not data:
                return
            # A gap that came meanwhile is written down before its zeros are there.
            if b"\0" in data and self._read_gaps():
                continue
            self.offset += len(data)
            self._in_line = not data.endswith(b"\n")
            yield data

    def _read_gaps(self) -> bool:
        gaps = read_gaps(self.file.gaps).get(self.file.path.name, [])
        changed, self._gaps = gaps != self._gaps, gaps
        return changed


def open_tails(files: Sequence[LogFile], since: float | None) -> list[LogTail]:
    """Open files at their beginning, or at the line that was being written at a moment (seconds since the epoch)."""
    return [LogTail(file, 0 if since is None else find_begin(file, since)) for file in files]


def find_begin(file: LogFile, since: float) -> int:
    """Find where the first line begins of which something came at a moment or later."""
    try:
        stat = file.path.stat()
        offset = find_since(file.times, since)
        if offset is None:
            unknown = not file.times.exists() and stat.st_mtime >= since
            return 0 if unknown else stat.st_size
        with file.path.open("rb") as opened:
            before = max(0, offset - LINE_BYTES)
            opened.seek(before)
            return before + opened.read(offset - before).rfind(b"\n") + 1 if offset else 0
    except OSError:
        return 0


def read_in_order(tails: Sequence[LogTail]) -> Iterator[tuple[LogFile, Piece]]:
    """Give what is there, roughly in the order in which it came."""
    spans = [_list_spans(place, tail) for place, tail in enumerate(tails)]
    for _, place, end in heapq.merge(*spans):
        for piece in tails[place].pieces(end):
            yield tails[place].file, piece


def _list_spans(place: int, tail: LogTail) -> Iterator[tuple[float, int, int]]:
    """Give (moment, file, end) of each stretch of bytes that came within a second, from the tail's offset on."""
    moment, begin = 0.0, tail.offset
    for at, offset in read_marks(tail.file.times):
        if offset > begin:
            yield moment, place, offset
        # A clock that was set back must not put a file's bytes out of order.
        moment = max(moment, at)
    try:
        yield moment, place, tail.file.path.stat().st_size
    except OSError:
        return


def follow(
    tails: Sequence[LogTail], is_over: Callable[[], bool], wait: Callable[[], bool]
) -> Iterator[tuple[LogFile, Piece]]:
    """Give what comes until the run is over, or `wait` finds that nobody reads any more."""
    while True:
        # Asked before reading: what was written until then is shown.
        over, found = is_over(), False
        for tail in tails:
            for piece in tail.pieces():
                found = True
                yield tail.file, piece
        if not found and (over or not wait()):
            return


def size_of(path: Path) -> int:
    """Give the length of a file that may not be there yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
