"""Lists the connections of this node's ranks: a queue that does not drain names the peer that does not read."""

from __future__ import annotations

import re
import shutil
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from orchestrator.node import report, runfolder
from orchestrator.node.probe_command import NoAnswerError, ask

Facts = Dict[str, Any]
MOST_LINES = 2000
LIMIT_S = 4.0
TRAFFIC_S = 1.0
"""Asked twice within one look at what the ranks do, which has to come in time itself."""
MOVED = re.compile(r"\bbytes_(?:acked|received):(\d+)")
PID = re.compile(r"\bpid=(\d+),")
Traffic = Dict[Tuple[str, ...], Tuple[Set[int], int]]
"""Both ends of a connection -> the processes that hold it, and the bytes that have got through."""


def list_sockets(folder: str, order: Facts) -> Facts:
    """Give what ss says of the connections of the ranks, or why it says nothing."""
    del order
    tool = find_tool()
    if tool is None:
        return {"text": "", "why": "there is no ss"}
    try:
        text = ask([tool, "-tinp"], LIMIT_S)
    except NoAnswerError as error:
        return {"text": "", "why": str(error)}
    ranks = report.last_ranks(runfolder.read_status(folder) or {})
    lines = pick_lines(text, [event["pid"] for event in ranks])
    return {"text": "\n".join(lines[:MOST_LINES]), "why": ""}


def find_tool() -> Optional[str]:
    """Find ss, which often lies where a plain user's PATH does not lead."""
    return shutil.which("ss") or shutil.which("ss", path="/usr/sbin:/sbin:/usr/bin:/bin")


def read_traffic() -> Optional[Traffic]:
    """Read what has got through the connections of this node: /proc/PID/io counts no byte of a socket."""
    tool = find_tool()
    if tool is None:
        return None
    try:
        return parse_traffic(ask([tool, "-tinp"], TRAFFIC_S))
    except NoAnswerError:
        return None


def parse_traffic(text: str) -> Traffic:
    """Read what ss tells: who holds each connection, and what has got through it."""
    found: Traffic = {}
    for line in join_lines(text):
        pids = {int(pid) for pid in PID.findall(line)}
        ends = tuple(line.split()[3:5])
        if pids and len(ends) == 2:  # noqa: PLR2004 - here and there
            found[ends] = (pids, sum(map(int, MOVED.findall(line))))
    return found


def count_moved(before: Optional[Traffic], after: Optional[Traffic], pids: Iterable[int]) -> Optional[int]:
    """Count the bytes that have got through the connections of some processes; None where nobody tells."""
    if before is None or after is None:
        return None
    wanted = set(pids)
    return sum(
        max(0, moved - before.get(ends, (set(), 0))[1]) for ends, (owners, moved) in after.items() if owners & wanted
    )


def pick_lines(text: str, pids: Iterable[int]) -> List[str]:
    """Pick the connections of some processes, one a line; what is known of one stands indented below it."""
    marks = ["pid=%d," % pid for pid in pids]
    return [line for line in join_lines(text) if any(mark in line for mark in marks)]


def join_lines(text: str) -> List[str]:
    """Put what stands indented below a connection behind it."""
    joined: List[str] = []
    for line in text.splitlines():
        if line[:1].isspace() and joined:
            joined[-1] += " " + line.strip()
        else:
            joined.append(line.rstrip())
    return joined
