"""Lists the connections of this node's ranks: a queue that does not drain names the peer that does not read."""

from __future__ import annotations

import shutil
from typing import Any, Dict, Iterable, List

from orchestrator.node import report, runfolder
from orchestrator.node.probe_command import NoAnswerError, ask

Facts = Dict[str, Any]
MOST_LINES = 2000
LIMIT_S = 4.0


def list_sockets(folder: str, order: Facts) -> Facts:
    """Give what ss says of the connections of the ranks, or why it says nothing."""
    del order
    tool = shutil.which("ss") or shutil.which("ss", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if tool is None:
        return {"text": "", "why": "there is no ss"}
    try:
        text = ask([tool, "-tinp"], LIMIT_S)
    except NoAnswerError as error:
        return {"text": "", "why": str(error)}
    ranks = report.last_ranks(runfolder.read_status(folder) or {})
    lines = pick_lines(text, [event["pid"] for event in ranks])
    return {"text": "\n".join(lines[:MOST_LINES]), "why": ""}


def pick_lines(text: str, pids: Iterable[int]) -> List[str]:
    """Pick the connections of some processes, one a line; what is known of one stands indented below it."""
    joined: List[str] = []
    for line in text.splitlines():
        if line[:1].isspace() and joined:
            joined[-1] += " " + line.strip()
        else:
            joined.append(line.rstrip())
    marks = ["pid=%d," % pid for pid in pids]
    return [line for line in joined if any(mark in line for mark in marks)]
