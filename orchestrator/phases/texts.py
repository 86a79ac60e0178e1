"""Reads the last words of ranks and agents out of the experiment directory, in bounded memory."""

from __future__ import annotations

from pathlib import Path

from orchestrator.diagnosis.tracebacks import parse_failure
from orchestrator.diagnosis.verdict import Texts
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


def line_of_error(path: Path) -> int | None:
    """Find the line number of the last error in a log of any size."""
    text = read_tail(path)
    failure = parse_failure(text)
    if failure is None or failure.line is None:
        return None
    skipped = 0
    with path.open("rb") as file:
        left = max(0, path.stat().st_size - TAIL)
        while left > 0:
            data = file.read(min(left, 1 << 20))
            if not data:
                break
            skipped += data.count(b"\n")
            left -= len(data)
    return skipped + failure.line


def build_texts(plan: Plan, paths: ExperimentPaths) -> Texts:
    """Build the readers that a verdict asks."""

    def rank_error_file(rank: int) -> bytes:
        path = paths.error_file(rank)
        return path.read_bytes() if path.exists() else b""

    def evidence(rank: int | None, node_rank: int) -> tuple[Evidence, ...]:
        found = []
        if rank is not None:
            if paths.error_file(rank).exists():
                found.append(paths.error_file(rank))
            found.append(paths.rank_err(rank))
        found.append(paths.node_log(node_rank, plan.nodes[node_rank].node.name))
        return tuple(
            Evidence(
                file=str(path.relative_to(paths.root)), line=line_of_error(path) if path.suffix == ".err" else None
            )
            for path in found
            if path.exists() and path.stat().st_size > 0
        )

    return Texts(
        rank_err=lambda rank: read_tail(paths.rank_err(rank)),
        rank_error_file=rank_error_file,
        agent_err=lambda node_rank: read_tail(paths.agent_err(node_rank)),
        evidence=evidence,
    )
