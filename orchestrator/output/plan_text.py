"""A plan for people: who runs what, with which environment, and the lines to start it by hand."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.noderanges import fold_names
from orchestrator.output.wording import count, strip_controls
from orchestrator.values import EnvValue, NodePlan, Plan

if TYPE_CHECKING:
    from orchestrator.facts import Facts

MASK = "•••"
"""What stands for a secret value."""


def render_plan(plan: Plan, facts: Sequence[Facts] = ()) -> RenderableType:
    """Render the nodes with their ranks, and what is run on them."""
    versions: dict[int, str] = {fact.node_rank: fact.torch_version or "none" for fact in facts}
    return Group(_render_head(plan), _render_nodes(plan, versions))


def render_environment(plan: Plan) -> RenderableType:
    """Render the variables that the ranks get, with the origin of each; what is the same on all nodes stands once."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("variable", "value", "nodes", "set by"):
        table.add_column(name, overflow="fold")
    for value, nodes in _fold_environment(plan):
        where = "all" if len(nodes) == len(plan.nodes) else fold_names(tuple(node.node.name for node in nodes))
        shown = MASK if value.secret else strip_controls(value.value)
        table.add_row(Text(value.name), Text(shown), Text(where), Text(value.origin))
    return table


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
    folder = shlex.quote(f"{node.run_folder}/outputs")
    where = f"# node {node.node_rank} of {node_count}: {node.node.name}".replace("\n", " ")
    return f"{where}\nmkdir -p {folder} && cd {shlex.quote(node.workdir)} && {' '.join(words)}"


def plan_document(plan: Plan) -> dict[str, object]:
    """Build the JSON document of a plan, secrets masked."""
    return {
        "schema": 1,
        "run_id": plan.run_id,
        "attempt": plan.attempt,
        "world_size": plan.world_size,
        "master_addr": plan.master_addr,
        "master_port": plan.master_port,
        "script": list(plan.script),
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
        f"\nruns {shlex.join(plan.script)}\n",
    )


def _render_nodes(plan: Plan, versions: Mapping[int, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    names = (
        "node rank",
        "node",
        "ranks",
        "processes",
        "address",
        "interface",
        "python",
        *(["torch"] if versions else []),
    )
    for name in names:
        table.add_column(name, overflow="fold", justify="right" if name in ("node rank", "processes") else "left")
    for node in plan.nodes:
        first, last = node.ranks[0], node.ranks[-1]
        cells = (
            str(node.node_rank),
            node.node.name,
            f"{first}-{last}" if last > first else str(first),
            str(node.processes),
            node.address,
            node.interface,
            node.python,
            versions.get(node.node_rank, ""),
        )
        table.add_row(*map(Text, cells[: len(names)]))
    return table


def _fold_environment(plan: Plan) -> list[tuple[EnvValue, list[NodePlan]]]:
    folded: dict[EnvValue, list[NodePlan]] = {}
    for node in plan.nodes:
        for value in node.env:
            folded.setdefault(value, []).append(node)
    order = {name: place for place, name in enumerate(dict.fromkeys(value.name for value in folded))}
    return sorted(folded.items(), key=lambda item: order[item[0].name])
