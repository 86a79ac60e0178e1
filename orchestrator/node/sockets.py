"""Lists the connections of this node's ranks: a queue that does not drain names the peer that does not read."""

from __future__ import annotations

import shutil
from typing import Any, Dict

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
        text = ask([tool, "-tinpO"], LIMIT_S)
    except NoAnswerError as error:
        return {"text": "", "why": str(error)}
    ranks = report.last_ranks(runfolder.read_status(folder) or {})
    marks = ["pid=%d," % event["pid"] for event in ranks]
    lines = [line for line in text.splitlines() if any(mark in line for mark in marks)]
    return {"text": "\n".join(lines[:MOST_LINES]), "why": ""}
