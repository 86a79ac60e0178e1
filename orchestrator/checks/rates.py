"""Judges how fast collectives are, on each node alone and over all of them."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.measured import Answers, over_collectives
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.facts.collectives import CollectivesFacts, WorldFacts
from orchestrator.settings import Settings
from orchestrator.values import Node

LARGE = 1 << 20
FASTEST_BUS_GBS = {"A100": 180.0, "H100": 440.0, "H200": 431.0, "MI300X": 310.0}
"""all_reduce of 1 GiB over 8 GPUs of one machine: the least that platforms accept (Azure, OCI, gcm)."""


def check_alone(nodes: Sequence[Node], facts: Sequence[Facts], found: CollectivesFacts, settings: Settings) -> Answers:
    """The processes of each node reduce among themselves as fast as those of the others."""
    worlds = {world.node_rank: world for world in found.alone}
    # Worlds of other sizes have other rates.
    best: dict[int, float] = {}
    for one in found.alone:
        best[one.size] = max(best.get(one.size, 0.0), _bus_gbs(one))
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        world = worlds.get(fact.node_rank)
        if world is None:
            answers.append((fact.node_rank, skip("one process")))
        elif not world.formed or world.troubles:
            said = world.troubles[0][1] if world.troubles else "no answer"
            answers.append(
                (fact.node_rank, fail(f"its own {world.size} ranks do not reduce: {said}", _topology(node, fact)))
            )
        else:
            answers.append((fact.node_rank, _judge_alone(node, fact, world, best[world.size], settings)))
    return answers


def _judge_alone(node: Node, fact: Facts, world: WorldFacts, best: float, settings: Settings) -> Seen:
    rate = _bus_gbs(world)
    detail = f"{rate:.2f} GB/s within the node"
    usual = next((least for name, least in FASTEST_BUS_GBS.items() if fact.gpus and name in fact.gpus[0].model), 0.0)
    if usual and world.size == 8 and rate < usual:  # noqa: PLR2004 - the figures are those of full machines
        return warn(f"{detail}, {usual:g} GB/s are usual for 8 of {fact.gpus[0].model}", _topology(node, fact))
    if rate < threshold(settings, "alone", "warn_share") * best:
        return warn(f"{detail}, but {best:.2f} GB/s on another", _topology(node, fact))
    return ok(detail)


def _topology(node: Node, fact: Facts) -> str:
    return on_node(node, {"nvidia": "nvidia-smi topo -m", "amd": "amd-smi topology"}.get(fact.gpu_kind, "uptime"))


def _bus_gbs(world: WorldFacts) -> float:
    rows = [row for row in world.rows if row.bytes >= LARGE]
    return max((bus_gbs(row.bytes, row.seconds, world.size) for row in rows), default=0.0)


def bus_gbs(size: int, seconds: float, ranks: int) -> float:
    """Turn the time of an all_reduce into what each rank's link carried, 10^9 bytes a second, as nccl-tests does."""
    return size / max(seconds, 1e-9) * 2 * (ranks - 1) / max(1, ranks) / 1e9


def check_bandwidth(
    nodes: Sequence[Node], facts: Sequence[Facts], found: CollectivesFacts, settings: Settings
) -> Answers:
    """Collectives over all nodes come near to what the interfaces can do."""
    del nodes
    world = found.world
    if world is None or not world.formed or not world.rows:
        return [(None, skip("no world has formed"))]
    rate = _bus_gbs(world)
    least_ms = min(row.seconds for row in world.rows) * 1e3
    detail = f"{rate:.3f} GB/s over all nodes, {least_ms:.2f} ms for the smallest"
    speeds = [entry.speed_mbit for fact in facts for entry in fact.addresses if entry.speed_mbit]
    # One process with gloo does not fill a fast link.
    line = min(min(speeds, default=0) / 8000, threshold(settings, "bandwidth", "most_gbs"))
    if line and found.device == "cpu" and 0 < rate < threshold(settings, "bandwidth", "warn_share") * line:
        return [
            (
                None,
                warn(
                    f"{detail}, the interfaces can do {line:g} GB/s", "aorta-launch check --level 1 --only links --all"
                ),
            )
        ]
    return [(None, ok(detail))]


CHECKS = (
    Check(
        name="alone",
        looks_at="all_reduce within each node",
        why="the slowest node sets the pace",
        fails="the processes of a node do not reduce",
        warns="below {warn_share:g} of the best node, or of what its GPUs are known for",
        level=1,
        whole=over_collectives(check_alone),
    ),
    Check(
        name="bandwidth",
        headline=True,
        looks_at="all_reduce over all nodes, by size",
        why="every step waits for the gradients",
        warns="below {warn_share:g} of the slowest interface (of at most {most_gbs:g} GB/s)",
        level=1,
        whole=over_collectives(check_bandwidth),
    ),
)
