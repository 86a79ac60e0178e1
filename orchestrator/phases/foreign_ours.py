"""Reads how ranks ended out of an experiment directory of ours, where nobody lived to give a verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.diagnosis.logcase import RankEnd
from orchestrator.plan.paths import ExperimentPaths


def is_experiment(path: Path) -> bool:
    """Tell whether a folder is an experiment directory of ours."""
    try:
        document = json.loads(ExperimentPaths(path).run_json.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and "state" in document


def read_ends(path: Path) -> dict[int, RankEnd]:
    """Read the supervisors' reports of ranks that ended; of several the last one counts."""
    return {int(event["rank"]): _build_end(event) for event in _read_events(path) if event.get("kind") == "rank_exit"}


def _read_events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = ExperimentPaths(path).events_jsonl.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # torn: whoever wrote it was killed
        if isinstance(event, dict) and isinstance(event.get("rank", 0), int):
            yield event


def _build_end(event: dict[str, Any]) -> RankEnd:
    return RankEnd(
        code=event.get("code"),
        signal=event.get("signal"),
        time=float(event.get("at") or 0.0),
        pid=event.get("pid"),
        after_stop=bool(event.get("after_stop")),
        oom_kills=int(event.get("oom_kills") or 0),
    )
