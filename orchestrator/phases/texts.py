"""Reads the last words of ranks and agents out of the experiment directory, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.diagnosis.live import Texts
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.values import Evidence, Plan

TAIL = 1 << 16
LEAST_SECRET = 6
"""Characters: shorter values stand in many a word."""


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


def build_mask(plan: Plan) -> Callable[[str], str]:
    """Build what hides the values that were given as secrets; after a take-over nobody here knows them any more."""
    values = {one.value for node in plan.nodes for one in node.env if one.secret and len(one.value) >= LEAST_SECRET}

    def mask(text: str) -> str:
        for value in sorted(values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    return mask


def build_texts(plan: Plan, paths: ExperimentPaths, told: Mapping[int, Mapping[str, Any]]) -> Texts:
    """Build the readers that a verdict asks; `told` is what the nodes wrote down when the run broke."""
    mask = build_mask(plan)

    def rank_error_file(rank: int) -> bytes:
        path = paths.error_file(rank)
        return mask(path.read_bytes().decode("utf-8", "replace")).encode() if path.exists() else b""

    def files(rank: int | None, node_rank: int) -> tuple[str, ...]:
        found = []
        if rank is not None:
            found += [paths.error_file(rank), paths.rank_err(rank), *paths.flight.glob(f"rank_{rank:04d}.*")]
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
        rank_err=lambda rank: mask(read_tail(paths.rank_err(rank))),
        rank_out=lambda rank: mask(read_tail(paths.rank_out(rank))),
        rank_error_file=rank_error_file,
        agent_err=lambda node_rank: mask(read_tail(paths.agent_err(node_rank))),
        node_evidence=lambda node_rank: told.get(node_rank, {}),
        files=files,
        place=place,
    )
