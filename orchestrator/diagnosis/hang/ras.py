"""Reads what NCCL's own service (RAS) says of ranks that have launched less than the others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.light_dataclass import dataclass

_HEAD = re.compile(r"ranks have different (?P<operation>\w+) operation counts")
_SEVERAL = re.compile(r"^\s*(?P<ranks>\d+) ranks have (?:launched up to operation (?P<count>\d+)|not launched any)")
_ONE = re.compile(
    r"^\s*Rank (?P<rank>\d+)(?: has (?:launched up to operation (?P<count>\d+)|not launched any operations?))?"
    r" -- .*process (?P<pid>\d+) on node (?P<node>\S+)"
)


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A rank that has launched less of an operation than most others of its communicator."""

    rank: int
    """Within the communicator, unless somebody has found its rank in the run."""
    operation: str
    launched: int
    others: int
    """How many of them have launched the most."""
    most: int
    pid: int
    node: str


@dataclass(frozen=True, kw_only=True)
class _Count:
    rank: int
    launched: int
    pid: int
    node: str


def parse_ras(text: str) -> tuple[Behind, ...]:
    """Find the ranks that are behind; what the service counts is launches, so a rank that never came shows."""
    found: list[Behind] = []
    operation, launched = "", 0
    totals: dict[int, int] = {}
    named: list[_Count] = []
    for line in [*text.splitlines(), "#"]:
        if line.startswith("#"):
            found += _fold(operation, totals, named)
            operation, totals, named = "", {}, []
        elif (head := _HEAD.search(line)) is not None:
            operation = head["operation"]
        elif (several := _SEVERAL.match(line)) is not None:
            launched = int(several["count"] or 0)
            totals[launched] = int(several["ranks"])
        elif (one := _ONE.match(line)) is not None:
            counted = " has " in line.partition(" -- ")[0]
            own = int(one["count"] or 0) if counted else launched
            named.append(_Count(rank=int(one["rank"]), launched=own, pid=int(one["pid"]), node=one["node"]))
            if counted:
                totals[own] = totals.get(own, 0) + 1
    return tuple(found)


def _fold(operation: str, totals: dict[int, int], named: Sequence[_Count]) -> list[Behind]:
    if not operation or not totals:
        return []
    most = max(totals)
    return [
        Behind(
            rank=one.rank,
            operation=operation,
            launched=one.launched,
            others=totals[most],
            most=most,
            pid=one.pid,
            node=one.node,
        )
        for one in named
        if one.launched < most
    ]
