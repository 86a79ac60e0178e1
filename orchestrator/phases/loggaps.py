"""Remembers what of the log files was dropped on the nodes before it came here: logs/gaps.jsonl, one line a gap."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from orchestrator.phases.lines import append_line

Gap = tuple[int, int]
"""From where to where bytes are missing."""

_WRITING = threading.Lock()
"""One file tells of all nodes, and each node has a thread of its own."""


def read_gaps(path: Path) -> dict[str, list[Gap]]:
    """Read the gaps of every log file, in order; none where there is no such file."""
    found: dict[str, list[Gap]] = {}
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return {}
    for line in text.split("\n"):
        try:
            document = json.loads(line)
            found.setdefault(document["file"], []).append((int(document["from"]), int(document["to"])))
        except (ValueError, KeyError, TypeError):
            continue  # torn: nothing of that gap is in the log file yet
    return {name: join_gaps(gaps) for name, gaps in found.items()}


def add_gap(path: Path, name: str, gap: Gap) -> None:
    """Add one gap of a log file.

    Raises:
        OSError: the disk of the launch host is full or gone.
    """
    with _WRITING:
        append_line(path, json.dumps({"file": name, "from": gap[0], "to": gap[1]}).encode())


def cut_gaps(gaps: list[Gap], known: list[Gap]) -> list[Gap]:
    """Give what is left of joined gaps without those that are known."""
    left = list(gaps)
    for begin, behind in known:
        parts = [((start, min(end, begin)), (max(start, behind), end)) for start, end in left]
        left = [part for pair in parts for part in pair if part[0] < part[1]]
    return left


def join_gaps(gaps: list[Gap]) -> list[Gap]:
    """Make one of gaps that overlap: a controller that died in the middle leaves one that is told again, longer."""
    joined: list[Gap] = []
    for start, end in sorted(gaps):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
