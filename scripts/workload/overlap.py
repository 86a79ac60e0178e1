"""Says how much of the communication was hidden behind compute, rank by rank, out of the traces of a run.

A step's communication is hidden where the rank computed at the same time, exposed where it did nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload.overlap_stream import TraceError, looks_like_trace
from workload.overlap_trace import Overlap, Trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

NS_PER_MS = 1e6
DONE, BROKEN, USAGE = 0, 1, 2
COLUMNS = ("rank", "host", "device", "steps", "step ms", "compute ms", "comm ms", "hidden ms", "exposed ms", "overlap")
LEFT_ALIGNED = frozenset({"rank", "host", "device"})


@dataclass
class RankOverlap:
    """All traces of one rank together."""

    rank: int | None
    host: str
    device: str
    files: list[str] = field(default_factory=list)
    overlap: Overlap = field(default_factory=Overlap)

    @property
    def exposed_per_step(self) -> float:
        """What the rank's steps wait for, each, in nanoseconds."""
        return self.overlap.exposed / max(self.overlap.steps, 1)


def main(words: Sequence[str] | None = None) -> int:
    """Read the traces, print the table or the JSON; 0 done, 1 where a trace is broken, 2 where there is none."""
    parser = argparse.ArgumentParser(prog="scripts/overlap", description=__doc__)
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a trace (.json, .json.gz), a folder of traces, an experiment directory",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    asked = parser.parse_args(words)
    try:
        files = find_traces(asked.paths)
    except TraceError as error:
        print(f"overlap: {error}", file=sys.stderr)
        return USAGE
    traces, errors = [], []
    for path in files:
        try:
            trace = read_trace(path)
        except TraceError as error:
            errors.append(str(error))
        except (ValueError, RecursionError, MemoryError) as error:
            # A thousand brackets, a number of thousands of digits: the other traces are told all the same.
            errors.append(f"{path}: it cannot be read: {error or type(error).__name__}")
        else:
            if trace.whole == Overlap():
                errors.append(f"{path}: no event of any length is in it")
            else:
                traces.append(trace)
    ranks = gather_ranks(traces)
    if asked.json:
        print(json.dumps(build_document(ranks, errors), indent=2))
    elif ranks:
        print(render_table(ranks))
    for text in errors:
        print(f"overlap: {text}", file=sys.stderr)
    return BROKEN if errors else DONE


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """Find the traces that are meant: files as they are named, folders searched to the bottom; TraceError if none."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = [
                file
                for pattern in ("*.json", "*.json.gz")
                for file in path.rglob(pattern)
                if file.is_file() and not file.name.startswith(".") and looks_like_trace(file)
            ]
            if not inside:
                raise TraceError(
                    f"{path}: no trace in it or below (*.json, *.json.gz); a run writes them with profiling.enabled: true"
                )
            found |= dict.fromkeys(sorted(inside))
        elif path.is_file():
            found[path] = None
        elif path.exists():
            raise TraceError(f"{path}: it is neither a file nor a folder")
        else:
            raise TraceError(f"{path}: there is no such file or folder")
    return list({path.resolve(): path for path in found}.values())


def gather_ranks(traces: Sequence[Trace]) -> list[RankOverlap]:
    """Put the windows of each rank together, in the order of ranks; a trace that names no rank stands alone."""
    ranks: dict[Any, RankOverlap] = {}
    for trace in traces:
        key = trace.path if trace.rank is None else trace.rank
        entry = ranks.setdefault(key, RankOverlap(trace.rank, trace.host, trace.device))
        entry.files.append(str(trace.path))
        entry.overlap += trace.whole
    return sorted(ranks.values(), key=lambda entry: (entry.rank is None, entry.rank or 0))


def find_worst(ranks: Sequence[RankOverlap]) -> RankOverlap | None:
    """Find the rank with most exposed communication a step; None where nobody communicated."""
    worst = max(ranks, key=lambda entry: entry.exposed_per_step, default=None)
    return worst if worst is not None and worst.overlap.communication else None


def build_document(ranks: Sequence[RankOverlap], errors: Sequence[str]) -> dict[str, Any]:
    """Build what --json prints; times in milliseconds, overlap_percent null without communication."""
    worst = find_worst(ranks)
    return {
        "schema": 1,
        "ranks": [
            {"rank": entry.rank, "host": entry.host, "device": entry.device, "files": entry.files}
            | _build_figures(entry.overlap)
            for entry in ranks
        ],
        "total": _build_figures(sum((entry.overlap for entry in ranks), Overlap())),
        "worst_rank": worst.rank if worst else None,
        "errors": list(errors),
    }


def _build_figures(overlap: Overlap) -> dict[str, Any]:
    times = {
        "step_ms": overlap.duration,
        "compute_ms": overlap.compute,
        "communication_ms": overlap.communication,
        "hidden_ms": overlap.hidden,
        "exposed_ms": overlap.exposed,
    }
    return {
        "steps": overlap.steps,
        **{name: time / NS_PER_MS for name, time in times.items()},
        "overlap_percent": None if overlap.share is None else round(100 * overlap.share, 3),
    }


def render_table(ranks: Sequence[RankOverlap]) -> str:
    """Render a line a rank, the sum of them and the worst of them."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for entry in ranks:
        name = "?" if entry.rank is None else str(entry.rank)
        rows.append((name, entry.host or "-", entry.device, *_render_figures(entry.overlap)))
    rows.append(("all", "", "", *_render_figures(sum((entry.overlap for entry in ranks), Overlap()))))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join(
            text.ljust(width) if name in LEFT_ALIGNED else text.rjust(width)
            for text, width, name in zip(row, widths, COLUMNS)
        ).rstrip()
        for row in rows
    ]
    worst = find_worst(ranks)
    if worst is None:
        lines.append("no communication in these traces")
    else:
        name = worst.files[0] if worst.rank is None else f"rank {worst.rank}"
        lines.append(f"worst: {name}, {worst.exposed_per_step / NS_PER_MS:.2f} ms of exposed communication a step")
    if any(not entry.overlap.steps for entry in ranks):
        lines.append("steps 0: no step is marked in the trace (ProfilerStep#N); all of it was measured as one")
    return "\n".join(lines)


def _render_figures(overlap: Overlap) -> tuple[str, ...]:
    times = (overlap.duration, overlap.compute, overlap.communication, overlap.hidden, overlap.exposed)
    share = "-" if overlap.share is None else f"{100 * overlap.share:.1f} %"
    return (str(overlap.steps), *(f"{time / NS_PER_MS:.2f}" for time in times), share)
