"""Stops a run from outside: through its controller, or every node is asked, and each one proves that nothing is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AortaError
from orchestrator.phases.connect import connect_each
from orchestrator.phases.control import ask_controller
from orchestrator.transport.fanout import try_each
from orchestrator.values import Node, StopReport

if TYPE_CHECKING:
    from orchestrator.phases.known_runs import KnownRun
    from orchestrator.settings import Settings
    from orchestrator.transport import Link

EXTRA_S = 60.0
"""Beyond the grace: a supervisor that hangs costs 25 s, a process in the kernel 10 s, twice."""


def stop_known(known: KnownRun, settings: Settings, links: dict[int, Link]) -> list[StopReport]:
    """Stop one run by the shortest way: its controller has open links; nodes it has lost, or all, are asked from here.

    Links that had to be opened for it are left open in `links`, by node rank: its record may have to be closed too.
    """
    order = {"op": "stop", "grace_s": settings.grace_s}
    answer = ask_controller(known, order, settings.grace_s + EXTRA_S + 10.0)
    # Only what was said when all was over is a proof.
    nodes = answer["nodes"] if answer is not None and answer["over"] else []
    told = {int(one["node_rank"]): one for one in nodes if one["final"]}
    missing = [node_rank for node_rank in range(len(known.nodes)) if node_rank not in told]
    asked = stop_run([known.nodes[node_rank] for node_rank in missing], settings, known.run_id, missing, links)
    reports = [*asked, *(_report(node_rank, one["node"], one["final"]) for node_rank, one in told.items())]
    return sorted(reports, key=lambda report: report.node_rank)


def stop_run(
    nodes: Sequence[Node],
    settings: Settings,
    run_id: str,
    node_ranks: Sequence[int] | None = None,
    kept: dict[int, Link] | None = None,
) -> list[StopReport]:
    """Stop one run on nodes, TERM, grace, KILL; a node that cannot be asked is reported, not raised.

    Without node_ranks, the place of a node in the list is its rank.
    """
    ranks = range(len(nodes)) if node_ranks is None else node_ranks
    links, errors = connect_each(nodes, settings)

    def stop(place: int) -> dict[str, Any]:
        request = {"run_id": run_id, "node_rank": ranks[place], "grace_s": settings.grace_s}
        if kept is not None:
            kept[ranks[place]] = links[place]
        try:
            return links[place].call("kill", request, settings.grace_s + EXTRA_S)
        finally:
            if kept is None:
                links[place].close()

    answers, failed = try_each(stop, sorted(links), settings.fanout)
    reports = [_report(ranks[place], nodes[place].name, answer) for place, answer in answers.items()]
    reports += [_unasked(ranks[place], nodes[place].name, error) for place, error in {**errors, **failed}.items()]
    return sorted(reports, key=lambda report: report.node_rank)


def _unasked(node_rank: int, name: str, error: AortaError) -> StopReport:
    return StopReport(node_rank=node_rank, node=name, found=False, error=error.what)


def _report(node_rank: int, name: str, answer: Mapping[str, Any]) -> StopReport:
    return StopReport(
        node_rank=node_rank,
        node=name,
        found=bool(answer.get("found", True)),
        stopped=int(answer.get("stopped", 0)),
        killed=int(answer["killed"]),
        survivors=tuple((int(left["pid"]), str(left["command"])) for left in answer["survivors"]),
        gpus_held=read_held(answer),
        gpus_why=str(answer.get("gpus_why", "")),
    )


def read_held(answer: Mapping[str, Any]) -> tuple[tuple[int, int], ...] | None:
    """Read which GPUs hold more than before the run out of a kill's answer or a node's last word; None: not compared."""
    held = answer.get("gpus")
    return None if held is None else tuple((int(gpu["gpu"]), int(gpu["held_mib"])) for gpu in held)
