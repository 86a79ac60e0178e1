"""Writes what the ranks of one node wrote into the experiment directory, byte for byte at the same offset."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from orchestrator.output.node_log import PIECE_BYTES, NodeLogWriter, render_dropped
from orchestrator.phases.loggaps import add_gap, read_gaps
from orchestrator.phases.logintent import Intent, read_intent, write_intent
from orchestrator.phases.logtimes import TimeWriter
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.values import NodePlan

Show = Callable[[int, int | None, str, bytes], None]
"""(node rank, rank or None for the agent, "out" or "err", bytes)."""
TRIED_BYTES = 1 << 18
"""A disk that takes so much has space again."""


class LogStore:
    """The log files of one node here; its own file lengths are the offsets to ask the node for."""

    def __init__(self, node: NodePlan, paths: ExperimentPaths, show: Show) -> None:
        self._node = node
        self._paths = paths
        self._show = show
        self._lengths: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        """How much of each file has gone to the screen; ahead of the length while the disk here is full."""
        self._open_lines: set[str] = set()
        """Files whose last shown byte did not end a line."""
        self._error_missed = False
        paths.logs.mkdir(parents=True, exist_ok=True)
        self._times = TimeWriter()
        self._merged = NodeLogWriter(paths.node_log(node.node_rank, node.node.name))
        self._intent_file = paths.logs / f".merging_{node.node_rank}"
        self._begun = read_intent(self._intent_file)
        self._told_whole = not self._intent_file.exists()
        """What of the files is here was told to its end, lines that had not ended as well: nobody was to go on."""
        if self._begun.name in self.names():
            # Before the merged log takes anything else. A full disk must not keep anybody from watching the run.
            with contextlib.suppress(OSError):
                self._length(self._begun.name)

    def names(self) -> list[str]:
        """List the node's names of all files that can come."""
        stems = ["agent", *(str(local) for local in range(self._node.processes))]
        return [f"{stem}.{stream}" for stem in stems for stream in ("out", "err")]

    def offsets(self) -> dict[str, int]:
        """Say how much of each file is here, for a pump that goes on where the last one ended."""
        return {name: self._length(name) for name in self.names()}

    @property
    def behind(self) -> bool:
        """Something came that the disk here did not take."""
        return self._error_missed or bool(self.missed())

    def missed(self) -> dict[str, int]:
        """Say of the files that fell behind what has come from where on the node has to send again."""
        return {name: length for name, length in self._lengths.items() if self._shown.get(name, 0) > length}

    def takes_more(self) -> bool:
        """Try whether the disk here has space again."""
        path = self._paths.logs / f".space_{self._node.node_rank}"
        try:
            path.write_bytes(bytes(TRIED_BYTES))
        except OSError:
            return False
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
        return True

    def _length(self, name: str) -> int:
        if name not in self._lengths:
            path = self._path(name)
            self._lengths[name] = length = path.stat().st_size if path.exists() else 0
            if length:
                self._resume(name, path, length)
        return self._lengths[name]

    def _resume(self, name: str, path: Path, length: int) -> None:
        """Bring the merged log to where a file is: who wrote it before may have been killed between the two."""
        begun = min(self._begun.begin, length) if name == self._begun.name else length
        gaps = read_gaps(self._paths.gaps_jsonl).get(path.name, [])
        label, stream = self._label(name), name.partition(".")[2]
        # Gaps that touch are told as one.
        whole = max((min(end, begun) for start, end in gaps if start < begun), default=0)
        held, continued = read_open_line(path, whole, begun)
        if self._told_whole:
            held, continued = b"", continued or bool(held)
        self._merged.resume(label, held, stream, continued=continued)
        if begun == length:
            return
        there = max(0, self._merged.size - self._begun.merged)
        if any(start <= begun < end for start, end in gaps):
            self._merged.drop(label, length - begun, stream, there)
            return
        with path.open("rb") as file:
            file.seek(begun)
            self._merged.feed(label, file.read(length - begun), stream, there)

    def rank(self, name: str) -> int | None:
        """Give the global rank of a file by the node's name of it; None for the agent."""
        stem = name.partition(".")[0]
        return None if stem == "agent" else self._node.first_rank + int(stem)

    def _path(self, name: str) -> Path:
        rank, stream = self.rank(name), name.partition(".")[2]
        if rank is None:
            place = self._paths.agent_out if stream == "out" else self._paths.agent_err
            return place(self._node.node_rank)
        return self._paths.rank_out(rank) if stream == "out" else self._paths.rank_err(rank)

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Write one piece at its place and show it; what is here already is neither written nor shown twice.

        Raises:
            OSError: the disk of the launch host is full or gone.
        """
        length = self._length(name)
        fresh = data[max(0, length - offset) :]
        self._show_new(name, offset, data)
        # What came while the disk was full is missing: the file stays a true beginning, without a hole of zeros.
        if fresh and offset <= length:
            self._append(name, fresh)

    def _show_new(self, name: str, offset: int, data: bytes) -> None:
        shown = self._shown.get(name, self._lengths[name])
        unseen = data[max(0, shown - offset) :]
        if not unseen:
            return
        self._shown[name] = offset + len(data)
        if unseen.endswith(b"\n"):
            self._open_lines.discard(name)
        else:
            self._open_lines.add(name)
        self._show(self._node.node_rank, self.rank(name), name.partition(".")[2], unseen)

    def _append(self, name: str, fresh: bytes) -> None:
        path, begin = self._path(name), self._lengths[name]
        self._intend(name)
        # Opened each time: kept open, the files of sixty nodes are more than a process may have.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        view = memoryview(fresh)
        try:
            while view:
                written = os.pwrite(handle, view, self._lengths[name])
                self._lengths[name] += written
                view = view[written:]
        finally:
            os.close(handle)
            stored = self._lengths[name] - begin
            if stored:
                self._times.note(self._paths.log_times(path.name), begin)
                self._merged.feed(self._label(name), fresh[:stored], name.partition(".")[2])

    def _intend(self, name: str) -> None:
        write_intent(self._intent_file, Intent(name, self._lengths[name], self._merged.size))

    def _label(self, name: str) -> str:
        rank = self.rank(name)
        return "agent" if rank is None else f"rank {rank}"

    def drop(self, name: str, start: int, end: int) -> int:
        """Leave out what the node has dropped, so that offsets stay equal; give how many bytes that were, 0 if known.

        Raises:
            OSError: the disk of the launch host is full or gone.
        """
        length = self._length(name)
        if end <= length:
            return 0
        shown = self._shown.get(name, length)
        if end > shown:
            self._shown[name] = end
            note = b"\n" * (name in self._open_lines) + render_dropped(end - max(shown, start)) + b"\n"
            self._open_lines.discard(name)
            self._show(self._node.node_rank, self.rank(name), name.partition(".")[2], note)
        if start > length:
            return 0  # what lies before it was missed here, and comes again together with it
        path = self._path(name)
        # Told before it is there: zeros in the file that no gap explains would be taken for the rank's own.
        add_gap(self._paths.gaps_jsonl, path.name, (length, end))
        self._intend(name)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(handle).st_size < end:
                os.ftruncate(handle, end)
        finally:
            os.close(handle)
        self._lengths[name] = end
        self._merged.drop(self._label(name), end - length, name.partition(".")[2])
        return end - length

    def write_error_file(self, name: str, data: bytes) -> None:
        """Keep an error file of a rank or of the agent."""
        self._paths.errors.mkdir(parents=True, exist_ok=True)
        rank = self.rank(name)
        path = (
            self._paths.errors / f"agent_{self._node.node_rank}.json" if rank is None else self._paths.error_file(rank)
        )
        self._error_missed = True
        path.write_bytes(data)
        self._error_missed = False

    def close(self, *, over: bool = True) -> None:
        """Close the merged log; `over` says that nobody goes on with it."""
        self._merged.close(over=over)
        if over:
            self._intent_file.unlink(missing_ok=True)


def read_open_line(path: Path, begin: int, length: int) -> tuple[bytes, bool]:
    """Read what the merged log has not got of the line that so much of a file ends in, and whether it has a part of it.

    Nothing counts before `begin`, the end of the last gap.
    """
    with path.open("rb") as file:
        start = place = length
        while start == place and place > begin:
            place = max(begin, place - PIECE_BYTES)
            file.seek(place)
            start = place + file.read(start - place).rfind(b"\n") + 1
        size = length - start
        held = size - (size - 1) // PIECE_BYTES * PIECE_BYTES if size else 0
        file.seek(length - held)
        return file.read(held), held < size or start == begin > 0
