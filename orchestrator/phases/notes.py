"""What people note on a run: one JSON line a note in a file that nothing else writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.phases.lines import append_line
from orchestrator.phases.record import now_utc
from orchestrator.phases.texts import read_tail
from orchestrator.plan.paths import ExperimentPaths


def add_note(experiment: Path, text: str) -> dict[str, str]:
    """Append a note.

    Raises:
        UsageError: the experiment directory is gone, or cannot be written.
    """
    # Words of a shell may be bytes that are no text.
    note = {"time": now_utc(), "text": os.fsencode(text).decode("utf-8", "backslashreplace")}
    path = ExperimentPaths(experiment).notes_jsonl
    try:
        if not experiment.is_dir():
            raise UsageError("its experiment directory is gone", str(experiment), "was it moved, or removed by hand?")
        append_line(path, json.dumps(note, ensure_ascii=False).encode())
    except OSError as error:
        remedy = "free space there or make it writable"
        raise UsageError(f"the note cannot be written: {error.strerror}", str(path), remedy) from error
    return note


def latest_note(experiment: Path) -> str:
    """Give the text of the latest note; empty when there is none that can be read."""
    for line in reversed(read_tail(ExperimentPaths(experiment).notes_jsonl).splitlines()):
        try:
            return str(json.loads(line)["text"])
        except (ValueError, KeyError, TypeError):
            continue
    return ""
