"""Remembers what of the log files was dropped on the nodes before it came here: logs/gaps.json."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from orchestrator.phases.record import write_json

Gap = tuple[int, int]
"""From where to where bytes are missing."""

_WRITING = threading.Lock()
"""One file tells of all nodes, and each node has a thread of its own."""


def read_gaps(path: Path) -> dict[str, list[Gap]]:
    """Read the gaps of every log file, in order; none where the file cannot be read."""
    try:
        document = json.loads(path.read_text("utf-8"))
        return {name: sorted((int(start), int(end)) for start, end in gaps) for name, gaps in document.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def add_gap(path: Path, name: str, gap: Gap) -> None:
    """Add one gap of a log file.

    Raises:
        OSError: the disk of the launch host is full or gone.
    """
    with _WRITING:
        gaps = read_gaps(path)
        gaps[name] = join_gaps([*gaps.get(name, []), gap])
        write_json(path, gaps)


def join_gaps(gaps: list[Gap]) -> list[Gap]:
    """Make one of gaps that overlap: a controller that died in the middle leaves one that is told again, longer."""
    joined: list[Gap] = []
    for start, end in sorted(gaps):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def count_missing(gaps: Mapping[str, list[Gap]]) -> dict[str, int]:
    """Count the missing bytes of each log file that has gaps."""
    return {name: sum(end - start for start, end in found) for name, found in gaps.items()}
