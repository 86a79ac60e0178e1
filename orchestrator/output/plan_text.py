"""A plan for people: who runs what, with which environment, and the lines to start it by hand."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from orchestrator.noderanges import fold_names
from orchestrator.output.table import align_cells
from orchestrator.output.wording import count, strip_controls
from orchestrator.values import EnvValue, NodePlan, Plan

if TYPE_CHECKING:
    from orchestrator.facts import Facts

MASK = "•••"
"""What stands for a secret value."""
FOLDED = ("interface", "torch", "python")
"""What has no column where it is the same on every node."""
MOST_ROWS = 16
FIRST_ROWS = 8
"""Nodes that a launch shows when they are more than MOST_ROWS."""
MOST_VALUES = 4
"""A variable with more values than this is shown by the head's alone; --json has them all."""


def render_plan(plan: Plan, facts: Sequence[Facts] = (), *, every: bool = True) -> Text:
    """Render the nodes with their ranks, and what is run on them; unless every, of many nodes only the first ones."""
    versions: dict[int, str] = {fact.node_rank: fact.torch_version or "none" for fact in facts}
    columns = _build_columns(plan, versions)
    same = [f"{name} {cells[0]}" for name, cells in columns.items() if name in FOLDED and len(set(cells)) == 1]
    head = _render_head(plan)
    if same:
        head.append(f"\n{'on every node: ' if len(plan.nodes) > 1 else ''}{' · '.join(same)}")
    apart = {name: cells for name, cells in columns.items() if name not in FOLDED or len(set(cells)) > 1}
    rows = [list(apart), *map(list, zip(*apart.values(), strict=True))]
    lines = align_cells([[Text(cell, "" if place else "bold") for cell in row] for place, row in enumerate(rows)])
    hidden = 0 if every or len(plan.nodes) <= MOST_ROWS else len(plan.nodes) - FIRST_ROWS
    if hidden:
        lines = [*lines[: FIRST_ROWS + 1], Text(f"and {hidden} more nodes (--dry-run shows them all)", "dim")]
    return Text("\n").join([head, Text(), *lines])


def render_environment(plan: Plan) -> Text:
    """Render the variables that the ranks get, with the origin of each; what is the same on all nodes stands once."""
    rows = [[Text(head, "bold") for head in ("variable", "set by", "nodes", "value")]]
    folded = _fold_environment(plan)
    values = Counter(value.name for value, _ in folded)
    told: set[str] = set()
    for value, nodes in folded:
        where = "all" if len(nodes) == len(plan.nodes) else fold_names(tuple(node.node.name for node in nodes))
        if values[value.name] > MOST_VALUES:
            if value.name in told:
                continue
            where = f"{where}, others have others"
        told.add(value.name)
        shown = MASK if value.secret else strip_controls(value.value)
        rows.append([Text(value.name), Text(value.origin), Text(where), Text(shown)])
    return Text("\n").join(align_cells(rows))


def render_commands(plan: Plan) -> str:
    """Render for each node the line that starts its agent by hand, quoted for a shell; secrets are not in it."""
    blocks = [render_command(node, len(plan.nodes)) for node in plan.nodes]
    secret = sorted({value.name for node in plan.nodes for value in node.env if value.secret})
    if secret:
        blocks.append(f"# secret, so not in these lines; export on each node first: {', '.join(secret)}")
    return "\n".join(blocks)


def render_command(node: NodePlan, node_count: int) -> str:
    """Render the line of one node, below a comment that says where it belongs."""
    # A secret is left out rather than named: env would show its value in ps.
    env = [f"{value.name}={shlex.quote(value.value)}" for value in node.env if not value.secret]
    words = ["env", *env, *map(shlex.quote, node.argv)]
    # Torch ends a rank that cannot make its pipe in the second one.
    folders = " ".join(shlex.quote(f"{node.run_folder}/{name}") for name in ("outputs", "diagnosis"))
    files = "".join(
        f"printf %s {shlex.quote(text)} > {shlex.quote(f'{node.run_folder}/{name}')} && " for name, text in node.files
    )
    where = f"# node {node.node_rank} of {node_count}: {node.node.name}".replace("\n", " ")
    return f"{where}\nmkdir -p {folders} && {files}cd {shlex.quote(node.workdir)} && {' '.join(words)}"


def plan_document(plan: Plan) -> dict[str, object]:
    """Build the JSON document of a plan, secrets masked."""
    return {
        "schema": 1,
        "run_id": plan.run_id,
        "attempt": plan.attempt,
        "world_size": plan.world_size,
        "master_addr": plan.master_addr,
        "master_port": plan.master_port,
        "agent": plan.agent,
        "script": list(plan.script),
        "project": plan.project,
        "grace_s": plan.grace_s,
        "failure_grace_s": plan.failure_grace_s,
        "nodes": [_node_document(node) for node in plan.nodes],
    }


def _node_document(node: NodePlan) -> dict[str, object]:
    return {
        "node_rank": node.node_rank,
        "node": node.node.name,
        "address": node.address,
        "interface": node.interface,
        "first_rank": node.first_rank,
        "processes": node.processes,
        "python": node.python,
        "workdir": node.workdir,
        "run_folder": node.run_folder,
        "argv": list(node.argv),
        "env": [
            {
                "name": value.name,
                "value": MASK if value.secret else value.value,
                "origin": value.origin,
                "secret": value.secret,
            }
            for value in node.env
        ],
    }


def _render_head(plan: Plan) -> Text:
    ranks = count(plan.world_size, "rank")
    return Text.assemble(
        (plan.run_id, "bold"),
        f"\n{ranks} on {count(len(plan.nodes), 'node')} · rendezvous at {plan.master_addr} port {plan.master_port}",
        f"\nruns {shlex.join(plan.script)}",
    )


def _build_columns(plan: Plan, versions: Mapping[int, str]) -> dict[str, list[str]]:
    columns = {
        "node": [f"{node.node_rank} {node.node.name}" for node in plan.nodes],
        "ranks": [_render_ranks(node.ranks) for node in plan.nodes],
        "address": [node.address for node in plan.nodes],
        "interface": [node.interface for node in plan.nodes],
        "torch": [versions.get(node.node_rank, "") for node in plan.nodes],
        "python": [node.python for node in plan.nodes],
    }
    if all(node.address == node.node.name for node in plan.nodes):
        del columns["address"]
    if not versions:
        del columns["torch"]
    return columns


def _render_ranks(ranks: range) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])


def _fold_environment(plan: Plan) -> list[tuple[EnvValue, list[NodePlan]]]:
    folded: dict[EnvValue, list[NodePlan]] = {}
    for node in plan.nodes:
        for value in node.env:
            folded.setdefault(value, []).append(node)
    order = {name: place for place, name in enumerate(dict.fromkeys(value.name for value in folded))}
    return sorted(folded.items(), key=lambda item: order[item[0].name])
