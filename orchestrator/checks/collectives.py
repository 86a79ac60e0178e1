"""Judges level 1: processes, sums, worlds, bandwidth, and which node or link is bad."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.remedies import install_torch, on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts, Survey
from orchestrator.facts.collectives import WorldFacts
from orchestrator.settings import Settings
from orchestrator.values import Node

Answers = list[tuple[int | None, Seen]]
LARGE = 1 << 20
TWO = 2
FASTEST_BUS_GBS = {"A100": 180.0, "H100": 440.0, "H200": 431.0, "MI300X": 310.0}
"""all_reduce of 1 GiB over 8 GPUs of one machine: the least that platforms accept (Azure, OCI, gcm)."""


def not_run(survey: Survey, facts: Sequence[Facts]) -> Answers:
    """Say for every node why level 1 did not run."""
    found = survey.collectives
    why = "not measured" if found is None else found.not_run
    return [(fact.node_rank, skip(why)) for fact in facts] if why else []


def check_torch_import(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """Torch is imported and its device used by every process."""
    if survey.collectives is None or survey.collectives.not_run:
        return not_run(survey, facts)
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        mine = [process for process in survey.collectives.processes if process.node_rank == fact.node_rank]
        broken = [process for process in mine if process.trouble]
        slowest = max((process.import_s or 0.0 for process in mine), default=0.0)
        look = on_node(
            node, f"{shlex.quote(fact.python)} -c 'import torch; print(torch.ones(1).to(\"{_device(survey)}\"))'"
        )
        if broken:
            first = broken[0]
            answers.append((fact.node_rank, fail(f"local rank {first.local_rank}: {first.trouble}", look)))
        elif slowest > threshold(settings, "torch-import", "warn_s"):
            remedy = on_node(node, f"{fact.python} -m compileall -q {fact.torch_folder}")
            answers.append((fact.node_rank, warn(f"{slowest:.1f} s for the import of torch", remedy)))
        else:
            answers.append((fact.node_rank, ok(f"{slowest:.1f} s for the import, {len(mine)} on {_device(survey)}")))
    return answers


def _device(survey: Survey) -> str:
    return survey.collectives.device if survey.collectives else "cpu"


def check_backend(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """Torch was built with the backend that the run will use."""
    del settings
    if survey.collectives is None or survey.collectives.not_run:
        return not_run(survey, facts)
    wanted = "nccl" if survey.collectives.device == "cuda" else "gloo"
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        mine = [process for process in survey.collectives.processes if process.node_rank == fact.node_rank]
        if any(process.trouble for process in mine):
            answers.append((fact.node_rank, skip("torch did not answer")))
        elif all(getattr(process, wanted) for process in mine):
            answers.append((fact.node_rank, ok(wanted)))
        else:
            remedy = on_node(node, install_torch(fact.python))
            answers.append((fact.node_rank, fail(f"this torch has no {wanted}", remedy)))
    return answers


def check_world(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """All ranks form one world and reduce together."""
    del settings
    if survey.collectives is None or survey.collectives.not_run:
        return not_run(survey, facts)
    world = survey.collectives.world
    if world is None:
        why = "one node" if len(nodes) < TWO else "torch did not answer everywhere"
        return [(None, skip(why))]
    if world.formed and not world.troubles:
        return [(None, ok(f"{world.size} ranks on {len(nodes)} nodes"))]
    look = "the checks pairs and links name the way that is closed; aorta-launch check --level 1 --all"
    return [(rank, fail(f"no world of {world.size} ranks: {trouble}", look)) for rank, trouble in world.troubles] or [
        (None, fail(f"no world of {world.size} ranks", look))
    ]


def check_alone(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """The processes of each node reduce among themselves as fast as those of the others."""
    if survey.collectives is None or survey.collectives.not_run:
        return not_run(survey, facts)
    worlds = {world.node_rank: world for world in survey.collectives.alone}
    rates = [_bus_gbs(world) for world in worlds.values() if world.formed]
    best = max(rates, default=0.0)
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
            answers.append((fact.node_rank, _judge_alone(node, fact, world, best, settings)))
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


def check_sums(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """What is added up is right everywhere."""
    del settings
    if survey.collectives is None or survey.collectives.not_run:
        return not_run(survey, facts)
    worlds = [*survey.collectives.alone, *([survey.collectives.world] if survey.collectives.world else [])]
    measured = [world for world in worlds if world.formed]
    wrong: dict[int, str] = {}
    for world in measured:
        for rank, text in world.wrong:
            wrong.setdefault(rank, text)
    if not measured:
        return [(None, skip("no world has formed"))]
    if not wrong:
        return [(None, ok(f"exact on {len(nodes)} nodes"))]
    return [
        (rank, fail(f"wrong: {text}", f"leave it out: --exclude {nodes[rank].name}"))
        for rank, text in sorted(wrong.items())
    ]


def check_bandwidth(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """Collectives over all nodes come near to what the interfaces can do."""
    del nodes
    if survey.collectives is None or survey.collectives.not_run:
        return not_run(survey, facts)
    world = survey.collectives.world
    if world is None or not world.formed or not world.rows:
        return [(None, skip("no world has formed"))]
    rate = _bus_gbs(world)
    least_ms = min(row.seconds for row in world.rows) * 1e3
    detail = f"{rate:.3f} GB/s over all nodes, {least_ms:.2f} ms for the smallest"
    speeds = [entry.speed_mbit for fact in facts for entry in fact.addresses if entry.speed_mbit]
    # One process with gloo does not fill a fast link.
    line = min(min(speeds, default=0) / 8000, threshold(settings, "bandwidth", "most_gbs"))
    if line and survey.collectives.device == "cpu" and 0 < rate < threshold(settings, "bandwidth", "warn_share") * line:
        return [
            (
                None,
                warn(
                    f"{detail}, the interfaces can do {line:g} GB/s", "aorta-launch check --level 1 --only links --all"
                ),
            )
        ]
    return [(None, ok(detail))]


def check_transport(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """NCCL uses the fast network where there is one, and the same everywhere."""
    del settings
    if survey.collectives is None or survey.collectives.not_run:
        return not_run(survey, facts)
    chosen = dict(survey.collectives.transports)
    if survey.collectives.device != "cuda":
        return [(None, skip("NCCL is not used"))]
    if not chosen:
        return [(None, unknown("NCCL did not say"))]
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        name = chosen.get(fact.node_rank, "")
        others = sorted({other for other in chosen.values() if other != name})
        if not name:
            answers.append((fact.node_rank, unknown("NCCL did not say")))
        elif name == "Socket" and others:
            remedy = on_node(node, "ls /sys/class/infiniband; ulimit -l")
            answers.append((fact.node_rank, fail(f"NCCL uses Socket, but {others[0]} elsewhere", remedy)))
        elif name == "Socket" and has_rdma(fact):
            remedy = on_node(node, "cat /sys/class/infiniband/*/ports/*/state; ulimit -l")
            answers.append((fact.node_rank, warn("NCCL uses Socket, although there are active RDMA ports", remedy)))
        else:
            answers.append((fact.node_rank, ok(f"NCCL uses {name}")))
    return answers


def has_rdma(facts: Facts) -> bool:
    """Tell whether a node has an RDMA port that is active."""
    return any(port.state == "ACTIVE" for port in getattr(facts.rdma, "ports", ()))


CHECKS = (
    Check(
        name="torch-import",
        headline=True,
        looks_at="import of torch and first use of the device by every process",
        why="a rank would end before it has begun",
        fails="a process cannot",
        warns="it takes longer than {warn_s:g} s",
        level=1,
        whole=check_torch_import,
    ),
    Check(
        name="backend",
        looks_at="gloo or NCCL in this torch",
        why="init_process_group would refuse the backend",
        fails="it is not built in",
        level=1,
        whole=check_backend,
    ),
    Check(
        name="alone",
        looks_at="all_reduce within each node",
        why="the slowest node sets the pace",
        fails="the processes of a node do not reduce",
        warns="below {warn_share:g} of the best node, or of what its GPUs are known for",
        level=1,
        whole=check_alone,
    ),
    Check(
        name="world",
        headline=True,
        looks_at="all ranks of all nodes in one world",
        why="the run would hang at its first collective",
        fails="it does not form, or a collective fails",
        level=1,
        whole=check_world,
    ),
    Check(
        name="sums",
        looks_at="exact sums of what depends on the rank, by gloo and NCCL",
        why="the model would learn from wrong gradients",
        fails="a result is wrong, or differs between ranks",
        level=1,
        whole=check_sums,
    ),
    Check(
        name="bandwidth",
        headline=True,
        looks_at="all_reduce over all nodes, by size",
        why="every step waits for the gradients",
        warns="below {warn_share:g} of the slowest interface (of at most {most_gbs:g} GB/s)",
        level=1,
        whole=check_bandwidth,
    ),
    Check(
        name="transport",
        looks_at="the network that NCCL says it uses",
        why="a quiet fall-back to TCP costs most of the speed",
        fails="nodes differ",
        warns="sockets although RDMA ports are active",
        level=1,
        whole=check_transport,
    ),
)
