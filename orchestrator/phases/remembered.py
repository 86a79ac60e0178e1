"""Reads everything that this launch host remembers of its runs, also what is broken; contacts nobody."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.light_dataclass import dataclass
from orchestrator.output.runs_table import RunLine
from orchestrator.phases.control import has_controller
from orchestrator.phases.known_runs import KnownRun, read_entry
from orchestrator.phases.notes import latest_note
from orchestrator.plan.paths import ExperimentPaths, launches_folder
from orchestrator.values import UNFINISHED


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """One entry, and what it leads to."""

    line: RunLine
    known: KnownRun | None = None
    """None: the entry cannot be read."""
    uncollected: bool = False
    """Ranks ran, and what they wrote is not here, or not all of it."""


def read_remembered(home: Path) -> list[Remembered]:
    """Read every entry with its record, the run that was launched first in front; none is left out."""
    found = [_remember(read_entry(entry), entry) for entry in launches_folder(home).glob("*.json")]
    return sorted(found, key=lambda one: (one.line.launched or 0.0, one.line.run_id))


def _unreadable(entry: Path) -> Remembered:
    line = RunLine(
        run_id=entry.stem,
        state="unknown",
        finished=False,
        launched=_time_of(entry),
        problem=f"its entry cannot be read: {entry}",
    )
    return Remembered(line=line)


def _remember(known: KnownRun | None, entry: Path) -> Remembered:
    if known is None:
        return _unreadable(entry)
    experiment = Path(known.experiment)
    record = read_record(experiment)
    problem = ""
    if not experiment.is_dir():
        problem = f"its experiment directory is gone: {experiment}"
    elif record.get("run_id") != known.run_id:
        problem = f"no record of it can be read in {experiment}"
        record = {}
    controlled, uncollected = has_controller(known.run_id), _is_uncollected(record)
    if not problem and record.get("verdict") and uncollected and not controlled:
        problem = f"its outputs are not here yet: aorta-launch attach {known.run_id}"
    state = str(record.get("state") or ("live" if known.live else "ended"))
    verdict = record.get("verdict")
    verdict = verdict if isinstance(verdict, Mapping) else {}
    finished = state not in (*UNFINISHED, "live", "unknown")
    line = RunLine(
        run_id=known.run_id,
        state=state,
        finished=finished,
        controlled=controlled,
        may_live=finished and known.live,
        nodes=tuple(node.name for node in known.nodes),
        launched=_launched(record, known.entry),
        exit_code=verdict["exit_code"] if isinstance(verdict.get("exit_code"), int) else None,
        cause=_cause(record, verdict),
        note=latest_note(experiment),
        problem=problem,
        experiment=known.experiment,
    )
    return Remembered(line=line, known=known, uncollected=uncollected)


def _is_uncollected(record: Mapping[str, Any]) -> bool:
    timings = record.get("timings")
    collected = isinstance(timings, Mapping) and "collected" in timings
    return bool(record.get("went")) and not collected and record.get("state") != "not started"


def read_record(experiment: Path) -> dict[str, Any]:
    """Read a run's record; empty when there is none that can be read."""
    try:
        record = json.loads(ExperimentPaths(experiment).run_json.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _cause(record: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    first = verdict.get("first_failure")
    first = first if isinstance(first, Mapping) else {}
    rank = f"rank {first['rank']} on {first.get('node', '')}" if first.get("rank") is not None else ""
    said = str(first.get("error") or verdict.get("cause") or record.get("error") or "")
    return ": ".join(filter(None, (rank, said)))


def _launched(record: Mapping[str, Any], entry: Path) -> float | None:
    timings = record.get("timings")
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return datetime.fromisoformat(timings["launched"]).timestamp()  # type: ignore[index] # what is wrong with it is no news here
    return _time_of(entry)


def _time_of(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None
