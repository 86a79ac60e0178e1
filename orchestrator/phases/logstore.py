"""Writes what the ranks of one node wrote into the experiment directory, byte for byte at the same offset."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from orchestrator.output.node_log import NodeLogWriter
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.values import NodePlan

Show = Callable[[int, int | None, str, bytes], None]
"""(node rank, rank or None for the agent, "out" or "err", bytes)."""


class LogStore:
    """The log files of one node here; its own file lengths are the offsets to ask the node for."""

    def __init__(self, node: NodePlan, paths: ExperimentPaths, show: Show) -> None:
        self._node = node
        self._paths = paths
        self._show = show
        self._handles: dict[str, int] = {}
        self._lengths: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        """How much of each file has gone to the screen; ahead of the length while the disk here is full."""
        paths.logs.mkdir(parents=True, exist_ok=True)
        self._merged = NodeLogWriter(paths.node_log(node.node_rank, node.node.name))

    def names(self) -> list[str]:
        """List the node's names of all files that can come."""
        stems = ["agent", *(str(local) for local in range(self._node.processes))]
        return [f"{stem}.{stream}" for stem in stems for stream in ("out", "err")]

    def offsets(self) -> dict[str, int]:
        """Say how much of each file is here, for a pump that goes on where the last one ended."""
        return {name: self._length(name) for name in self.names()}

    def _length(self, name: str) -> int:
        if name not in self._lengths:
            path = self._path(name)
            self._lengths[name] = path.stat().st_size if path.exists() else 0
        return self._lengths[name]

    def _rank(self, name: str) -> int | None:
        stem = name.partition(".")[0]
        return None if stem == "agent" else self._node.first_rank + int(stem)

    def _path(self, name: str) -> Path:
        rank, stream = self._rank(name), name.partition(".")[2]
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
        shown = self._shown.get(name, length)
        unseen = data[max(0, shown - offset) :]
        if unseen:
            self._shown[name] = offset + len(data)
            rank, stream = self._rank(name), name.partition(".")[2]
            self._show(self._node.node_rank, rank, stream, unseen)
        # What came while the disk was full is missing: the file stays a true beginning, without a hole of zeros.
        if fresh and offset <= length:
            self._append(name, fresh)

    def _append(self, name: str, fresh: bytes) -> None:
        if name not in self._handles:
            self._handles[name] = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        view = memoryview(fresh)
        while view:
            written = os.pwrite(self._handles[name], view, self._lengths[name])
            self._lengths[name] += written
            view = view[written:]
        rank, stream = self._rank(name), name.partition(".")[2]
        self._merged.feed("agent" if rank is None else f"rank {rank}", fresh, stream)

    def write_error_file(self, name: str, data: bytes) -> None:
        """Keep an error file of a rank or of the agent."""
        self._paths.errors.mkdir(parents=True, exist_ok=True)
        rank = self._rank(name)
        path = (
            self._paths.errors / f"agent_{self._node.node_rank}.json" if rank is None else self._paths.error_file(rank)
        )
        path.write_bytes(data)

    def close(self) -> None:
        """Flush the merged log and close the files."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()
        self._merged.close()
