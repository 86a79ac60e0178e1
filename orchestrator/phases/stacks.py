"""Asks every node of a run what its ranks are doing: over the pumps of a controller, or over links of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.diagnosis.hang.stacks_node import NodeLook, build_node_look, list_looks, render_look
from orchestrator.errors import UsageError
from orchestrator.phases.answers import ask_nodes
from orchestrator.phases.connect import close_links, connect_each
from orchestrator.phases.control import ask_controller
from orchestrator.phases.saved_run import read_saved_run
from orchestrator.phases.stacks_tool import carry_tool, find_tool, list_lacking
from orchestrator.transport.fanout import try_each

if TYPE_CHECKING:
    from orchestrator.phases.known_runs import KnownRun
    from orchestrator.phases.reader import NodeReader
    from orchestrator.settings import Settings
    from orchestrator.values import Plan

STACKS_S = 20.0
"""A node's own limit; what hangs there is told as missing."""
ASK_S = 30.0


def gather_stacks(readers: Sequence[NodeReader], *, native: bool) -> dict[str, Any]:
    """Ask through the readers of a controller; give one answer a node, as data that travels."""
    answers = ask_nodes(readers, {"op": "stacks", "native": native}, STACKS_S)
    return {
        "nodes": [
            {
                **answers.get(reader.node.node_rank, {"error": "no answer" if reader.is_alive() else "it has ended"}),
                "node_rank": reader.node.node_rank,
                "node": reader.node.node.name,
            }
            for reader in readers
        ]
    }


def look_at_run(known: KnownRun, settings: Settings, *, native: bool) -> tuple[NodeLook, ...]:
    """See what the ranks of a run are doing, whoever watches it.

    Raises:
        UsageError: the run is over.
    """
    if not known.live:
        raise UsageError(
            what=f"{known.run_id} is over: no rank of it runs",
            where="command line",
            remedy=f"aorta-launch status {known.run_id} says how it ended",
        )
    plan = _read_plan(known)
    answers = _ask_run(known, settings, native=native)
    lacking, tool = list_lacking(answers), find_tool(settings.py_spy)
    if lacking and tool is not None and plan is not None:
        links, _ = connect_each([known.nodes[place] for place in lacking], settings)
        own = {lacking[at]: link for at, link in links.items()}
        if carry_tool(tool, [plan.nodes[place] for place in lacking], own):
            answers |= _ask_run(known, settings, native=native)
        close_links(own.values())
    return tuple(
        look_at_node(plan, place, node.name, answers.get(place, {"error": "no answer"}))
        for place, node in enumerate(known.nodes)
    )


def look_at_node(plan: Plan | None, node_rank: int, name: str, answer: Mapping[str, Any]) -> NodeLook:
    """Read what one node answered, in the words of the plan."""
    node = plan.nodes[node_rank] if plan is not None else None
    return build_node_look(
        answer,
        node_rank=node_rank,
        node=name,
        address=node.address if node is not None else "",
        workdir=node.workdir if node is not None else "",
    )


def _read_plan(known: KnownRun) -> Plan | None:
    with contextlib.suppress(UsageError):  # the folder was removed: the nodes are known all the same
        return read_saved_run(known).plan
    return None


def _ask_run(known: KnownRun, settings: Settings, *, native: bool) -> dict[int, Mapping[str, Any]]:
    told = ask_controller(known, {"op": "stacks", "native": native}, ASK_S)
    if told is not None and told.get("nodes"):
        return {int(one["node_rank"]): one for one in told["nodes"]}
    return _ask_links(known, settings, native=native)


def _ask_links(known: KnownRun, settings: Settings, *, native: bool) -> dict[int, Mapping[str, Any]]:
    links, errors = connect_each(known.nodes, settings)

    def ask(place: int) -> Mapping[str, Any]:
        link = links[place]
        try:
            request = {"run_id": known.run_id, "node_rank": place, "native": native}
            return link.call("stacks", request, ASK_S)
        finally:
            link.close()

    answers, failed = try_each(ask, sorted(links), settings.fanout)
    return {**{place: {"error": error.what} for place, error in {**errors, **failed}.items()}, **answers}


def write_stacks(folder: Path, nodes: Sequence[NodeLook]) -> None:
    """Keep the stack of every rank in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {node.node_rank: node.node for node in nodes}
    for look in list_looks(nodes):
        text = render_look(look, names[look.node_rank])
        (folder / f"rank_{look.rank:04d}.txt").write_text(text, "utf-8", "backslashreplace")
