"""Build the plan of one attempt of a run: ranks, words and environment of every node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import NotReadyError
from orchestrator.light_dataclass import dataclass
from orchestrator.plan.agents import AgentPlan, build_agent, refuse_unequal
from orchestrator.plan.environment import build_env, build_run_values
from orchestrator.plan.gpus import build_gpu_memory
from orchestrator.plan.paths import NodePaths, file_name
from orchestrator.plan.placeholders import replace_placeholders, speaks_for_config
from orchestrator.plan.ranks import build_first_ranks, count_all
from orchestrator.plan.seat import AgentSeat
from orchestrator.plan.torchrun import build_script
from orchestrator.values import EnvValue, Node, NodePlan, Plan

if TYPE_CHECKING:
    from orchestrator.facts import Facts
    from orchestrator.settings import Settings


class Placed(Protocol):
    """Where a node was reached by the others: its proved address and the interface that carries it."""

    @property
    def address(self) -> str:
        """Numeric data address."""

    @property
    def interface(self) -> str:
        """Its interface, empty when not known."""


def build_run_id(label: str, now: datetime, token: str) -> str:
    """Build the name of a run, which is also the name of its experiment directory."""
    return f"{file_name(label)}_{now:%Y%m%d_%H%M%S}-{token}"


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What all nodes of the run share."""

    run_id: str
    attempt: int
    settings: Settings
    script: tuple[str, ...]
    addresses: tuple[str, ...]
    master_addr: str
    master_port: int
    env: tuple[EnvValue, ...]
    world_size: int


@dataclass(frozen=True)
class _Seat:
    """What one node has of its own."""

    node_rank: int
    node: Node
    facts: Facts
    place: Placed
    workdir: str
    processes: int
    first_rank: int


def build_plan(
    *,
    run_id: str,
    attempt: int,
    settings: Settings,
    nodes: Sequence[Node],
    facts: Sequence[Facts],
    master_addr: str,
    master_port: int,
    places: Sequence[Placed],
    env: Sequence[EnvValue],
    workdirs: Sequence[str],
) -> Plan:
    """Build the plan; nodes, facts, places and workdirs are in node rank order.

    Raises:
        UsageError: nothing to run.
        ConfigError: a script outside the project, a variable that is not the user's, a NUL.
        NotReadyError: a node without an interpreter, or without the GPUs that were asked for; unequal nodes.
    """
    counts = count_all(nodes, facts, settings.nproc_per_node, env)
    refuse_unequal(nodes, counts, settings)
    run = _Run(
        run_id=run_id,
        attempt=attempt,
        settings=settings,
        script=build_script(settings),
        addresses=tuple(place.address for place in places),
        master_addr=master_addr,
        master_port=master_port,
        env=tuple(env),
        world_size=sum(counts),
    )
    rows = zip(nodes, facts, places, workdirs, counts, build_first_ranks(counts), strict=True)
    return Plan(
        run_id=run_id,
        attempt=attempt,
        project=str(settings.project),
        nodes=tuple(_build_node(run, _Seat(rank, *row)) for rank, row in enumerate(rows)),
        master_addr=master_addr,
        master_port=master_port,
        script=(*run.script, *settings.args),
        agent=settings.agent,
        grace_s=settings.grace_s,
        failure_grace_s=settings.failure_grace_s,
    )


def _build_node(run: _Run, seat: _Seat) -> NodePlan:
    paths = NodePaths.of(seat.facts.home, run.run_id, seat.node_rank)
    named = _build_placeholders(run.settings, paths, run.run_id, seat.node_rank)
    python = _interpreter(seat.node, seat.facts)
    agent = _plan_agent(run, seat, paths, python, named)
    identity = build_run_values(
        run_id=run.run_id,
        attempt=run.attempt,
        node_rank=seat.node_rank,
        addresses=run.addresses,
        paths=paths,
        config=run.settings.config,
        pushed=seat.workdir if run.settings.push else "",
    )
    return NodePlan(
        node_rank=seat.node_rank,
        node=seat.node,
        processes=seat.processes,
        first_rank=seat.first_rank,
        address=seat.place.address,
        interface=seat.place.interface,
        python=python,
        workdir=seat.workdir,
        run_folder=str(paths.root),
        argv=agent.argv,
        files=agent.files,
        env=build_env(
            node=seat.node,
            facts=seat.facts,
            processes=seat.processes,
            interface=seat.place.interface,
            given=run.env,
            run={**identity, **agent.env},
            placeholders=named,
            paths=paths,
        ),
        gpu_memory=build_gpu_memory(seat.node, seat.facts, run.settings.nproc_per_node, run.env),
    )


def _plan_agent(run: _Run, seat: _Seat, paths: NodePaths, python: str, named: dict[str, str]) -> AgentPlan:
    return build_agent(
        AgentSeat(
            settings=run.settings,
            python=python,
            run_name=f"{run.run_id}.a{run.attempt}",
            node_count=len(run.addresses),
            node_rank=seat.node_rank,
            processes=seat.processes,
            first_rank=seat.first_rank,
            world_size=run.world_size,
            master_addr=run.master_addr,
            master_port=run.master_port,
            paths=paths,
            torchrun_flags=seat.facts.torchrun_flags,
            script=(*run.script, *_build_args(run.settings, named)),
            placeholders=named,
        )
    )


def _build_placeholders(settings: Settings, paths: NodePaths, run_id: str, node_rank: int) -> dict[str, str]:
    return {
        "config": str(paths.config_yaml) if settings.config else "",
        "output_dir": str(paths.outputs),
        "run_id": run_id,
        "node_rank": str(node_rank),
    }


def _build_args(settings: Settings, named: dict[str, str]) -> tuple[str, ...]:
    # Words from the command line are the user's, untouched; only the config speaks in placeholders.
    if not speaks_for_config(settings.origins.get("args", "")):
        return tuple(settings.args)
    return tuple(replace_placeholders(word, named) for word in settings.args)


def _interpreter(node: Node, facts: Facts) -> str:
    if not facts.python:
        raise NotReadyError(
            "no Python for the run was found", node.name, "give launch.python, or python= in the node list"
        )
    return facts.python
