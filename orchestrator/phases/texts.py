"""Reads the last words of ranks and agents out of the experiment directory, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.diagnosis.live import Texts
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.values import Evidence, Plan

TAIL = 1 << 16


def read_tail(path: Path, size: int = TAIL) -> str:
    """Read the end of a file as text; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def count_lines_before_tail(path: Path) -> int:
    """Count the lines of a file, of any size, that lie before the part that read_tail gives."""
    lines = 0
    try:
        left = max(0, path.stat().st_size - TAIL)
        with path.open("rb") as file:
            while left > 0 and (data := file.read(min(left, 1 << 20))):
                lines += data.count(b"\n")
                left -= len(data)
    except OSError:
        return 0
    return lines


def build_texts(plan: Plan, paths: ExperimentPaths, told: Mapping[int, Mapping[str, Any]]) -> Texts:
    """Build the readers that a verdict asks; `told` is what the nodes wrote down when the run broke."""

    def rank_error_file(rank: int) -> bytes:
        path = paths.error_file(rank)
        return path.read_bytes() if path.exists() else b""

    def files(rank: int | None, node_rank: int) -> tuple[str, ...]:
        found = []
        if rank is not None:
            found += [paths.error_file(rank), paths.rank_err(rank)]
        found += [paths.node_log(node_rank, plan.nodes[node_rank].node.name), paths.node_evidence(node_rank)]
        return tuple(str(path.relative_to(paths.root)) for path in found if path.exists() and path.stat().st_size > 0)

    def place(evidence: Evidence) -> Evidence | None:
        path = paths.root / evidence.file
        if not path.exists():
            return None
        if evidence.line is None:
            return evidence
        skipped = count_lines_before_tail(path)
        return Evidence(file=evidence.file, line=skipped + evidence.line)

    return Texts(
        rank_err=lambda rank: read_tail(paths.rank_err(rank)),
        rank_out=lambda rank: read_tail(paths.rank_out(rank)),
        rank_error_file=rank_error_file,
        agent_err=lambda node_rank: read_tail(paths.agent_err(node_rank)),
        node_evidence=lambda node_rank: told.get(node_rank, {}),
        files=files,
        place=place,
    )
