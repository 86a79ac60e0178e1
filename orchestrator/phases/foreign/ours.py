"""Tells an experiment directory of ours from other folders."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.plan.paths import ExperimentPaths


def is_experiment(path: Path) -> bool:
    """Tell whether a folder is an experiment directory of ours."""
    record = ExperimentPaths(path).run_json
    try:
        # A fifo of that name would never be read to its end.
        document = json.loads(record.read_text("utf-8")) if record.is_file() else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "state" in document
