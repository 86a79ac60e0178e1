"""Stops a run from outside: every node is asked, and each one proves that nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.errors import AortaError
from orchestrator.phases.connect import connect
from orchestrator.transport.fanout import fan_out
from orchestrator.values import Node, StopReport

if TYPE_CHECKING:
    from orchestrator.settings import Settings

EXTRA_S = 60.0
"""Beyond the grace: a supervisor that hangs costs 25 s, a process in the kernel 10 s, twice."""


def stop_run(nodes: Sequence[Node], settings: Settings, run_id: str) -> list[StopReport]:
    """Stop one run on all its nodes, TERM, grace, KILL; a node that cannot be asked is reported, not raised."""

    def stop(node_rank: int) -> StopReport:
        node = nodes[node_rank]
        request = {"run_id": run_id, "node_rank": node_rank, "grace_s": settings.grace_s}
        try:
            link = connect([node], settings)[0]
            try:
                answer = link.call("kill", request, settings.grace_s + EXTRA_S)
            finally:
                link.close()
        except AortaError as error:
            return StopReport(node_rank=node_rank, node=node.name, found=False, error=error.what)
        return StopReport(
            node_rank=node_rank,
            node=node.name,
            found=bool(answer["found"]),
            stopped=int(answer["stopped"]),
            killed=int(answer["killed"]),
            survivors=tuple((int(left["pid"]), str(left["command"])) for left in answer["survivors"]),
        )

    return fan_out(stop, range(len(nodes)), settings.fanout)
