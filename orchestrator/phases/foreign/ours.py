"""Tells an experiment directory of ours from other folders."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.plan.paths import ExperimentPaths


def is_experiment(path: Path) -> bool:
    """Tell whether a folder is an experiment directory of ours."""
    try:
        document = json.loads(ExperimentPaths(path).run_json.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and "state" in document
