"""Judges level 1: processes, worlds, sums and the network they use."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.measured import Answers, over_collectives
from orchestrator.checks.pairs import find_causes
from orchestrator.checks.pip import torch_line
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.facts.collectives import CollectivesFacts
from orchestrator.settings import Settings
from orchestrator.values import Node

TWO = 2
OWN_PART = "its own part"


def check_torch_import(
    nodes: Sequence[Node], facts: Sequence[Facts], found: CollectivesFacts, settings: Settings
) -> Answers:
    """Torch is imported and its device used by every process."""
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        mine = [process for process in found.processes if process.node_rank == fact.node_rank]
        broken = [process for process in mine if process.trouble]
        slowest = max((process.import_s or 0.0 for process in mine), default=0.0)
        look = on_node(
            node, f"{shlex.quote(fact.python)} -c 'import torch; print(torch.ones(1).to(\"{found.device}\"))'"
        )
        if broken:
            first = broken[0]
            answers.append((fact.node_rank, fail(f"local rank {first.local_rank}: {first.trouble}", look)))
        elif slowest > threshold(settings, "torch-import", "warn_s"):
            remedy = on_node(node, f"{shlex.quote(fact.python)} -m compileall -q {shlex.quote(fact.torch_folder)}")
            answers.append((fact.node_rank, warn(f"{slowest:.1f} s for the import of torch", remedy)))
        else:
            answers.append((fact.node_rank, ok(f"{slowest:.1f} s for the import, {len(mine)} on {found.device}")))
    return answers


def check_backend(
    nodes: Sequence[Node], facts: Sequence[Facts], found: CollectivesFacts, settings: Settings
) -> Answers:
    """Torch was built with the backend that the run will use."""
    del settings
    wanted = "nccl" if found.device == "cuda" else "gloo"
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        mine = [process for process in found.processes if process.node_rank == fact.node_rank]
        if any(process.trouble for process in mine):
            answers.append((fact.node_rank, skip("torch did not answer")))
        elif all(getattr(process, wanted) for process in mine):
            answers.append((fact.node_rank, ok(wanted)))
        else:
            remedy = torch_line(node, fact)
            answers.append((fact.node_rank, fail(f"this torch has no {wanted}", remedy)))
    return answers


def check_world(nodes: Sequence[Node], facts: Sequence[Facts], found: CollectivesFacts, settings: Settings) -> Answers:
    """All ranks form one world and reduce together."""
    del facts, settings
    world = found.world
    if world is None:
        why = "one node" if len(nodes) < TWO else "torch did not answer everywhere"
        return [(None, skip(why))]
    if world.formed and world.at_first:
        again = "aorta-launch check --level 1"
        first = find_causes(world.at_first)
        return [(rank, warn(f"only at the second try, with more time; first: {said}", again)) for rank, said in first]
    if world.formed and not world.troubles:
        return [(None, ok(f"{world.size} ranks on {len(nodes)} nodes"))]
    look = "aorta-launch check --level 1 --only world,links --all"
    what = f"no world of {world.size} ranks"
    if found.pairs and not any(pair.trouble for pair in found.pairs):
        what += ", though each pair of nodes that was tried forms one"
    if found.largest is not None:
        # What grows with the size: open files, connections that a firewall keeps, a switch.
        look = on_node(nodes[0], "ulimit -n; cat /proc/sys/net/netfilter/nf_conntrack_max")
        what += f"; the first {found.largest} nodes do, {found.largest + 1} do not"
    causes = find_causes(world.troubles)
    return [(rank, fail(f"{what}: {trouble}", look)) for rank, trouble in causes] or [(None, fail(what, look))]


def check_sums(nodes: Sequence[Node], facts: Sequence[Facts], found: CollectivesFacts, settings: Settings) -> Answers:
    """What is added up is right everywhere."""
    del facts, settings
    worlds = [*found.alone, *([found.world] if found.world else [])]
    measured = [world for world in worlds if world.formed]
    wrong: dict[int, str] = {}
    for world in measured:
        for rank, text in world.wrong:
            if rank not in wrong or OWN_PART in text:
                wrong[rank] = text
    if not measured:
        return [(None, skip("no world has formed"))]
    if not wrong:
        return [(None, ok(f"exact on {len(nodes)} nodes"))]
    # One wrong part makes the sum wrong for all: only its giver is to blame.
    wrong = {rank: text for rank, text in wrong.items() if OWN_PART in text} or wrong
    if len(wrong) == len(nodes) > 1:
        every = ", ".join(sorted(set(wrong.values())))
        return [(None, fail(f"wrong on every node: {every}", "aorta-launch check --level 2"))]
    return [
        (rank, fail(f"wrong: {text}", f"leave it out: --exclude {nodes[rank].name}"))
        for rank, text in sorted(wrong.items())
    ]


def check_transport(
    nodes: Sequence[Node], facts: Sequence[Facts], found: CollectivesFacts, settings: Settings
) -> Answers:
    """NCCL uses the fast network where there is one, and the same everywhere."""
    del settings
    chosen = dict(found.transports)
    if found.device != "cuda":
        return [(None, skip("NCCL is not used"))]
    if not chosen:
        formed = found.world is not None and found.world.formed
        why = "one node" if len(nodes) < TWO else "no world has formed"
        return [(None, unknown("NCCL did not say") if formed else skip(why))]
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        name = chosen.get(fact.node_rank, "")
        others = sorted({other for other in chosen.values() if other != name})
        if not name:
            answers.append((fact.node_rank, unknown("NCCL did not say")))
        elif name == "Socket" and others:
            remedy = on_node(node, "ls /sys/class/infiniband; ulimit -l")
            answers.append((fact.node_rank, fail(f"NCCL uses Socket, but {others[0]} elsewhere", remedy)))
        elif name == "Socket" and fact.rdma.active:
            remedy = on_node(node, "cat /sys/class/infiniband/*/ports/*/state; ulimit -l")
            answers.append((fact.node_rank, warn("NCCL uses Socket, although there are active RDMA ports", remedy)))
        else:
            answers.append((fact.node_rank, ok(f"NCCL uses {name}")))
    return answers


CHECKS = (
    Check(
        name="torch-import",
        headline=True,
        looks_at="import of torch and first use of the device by every process",
        why="a rank would end before it has begun",
        fails="a process cannot",
        warns="it takes longer than {warn_s:g} s",
        level=1,
        whole=over_collectives(check_torch_import),
    ),
    Check(
        name="backend",
        looks_at="gloo or NCCL in this torch",
        why="init_process_group would refuse the backend",
        fails="it is not built in",
        level=1,
        whole=over_collectives(check_backend),
    ),
    Check(
        name="world",
        headline=True,
        looks_at="all ranks of all nodes in one world",
        why="the run would hang at its first collective",
        fails="it does not form, or a collective fails",
        warns="it forms at the second try, with more time",
        level=1,
        whole=over_collectives(check_world),
    ),
    Check(
        name="sums",
        looks_at="exact sums of what depends on the rank, by gloo and NCCL",
        why="the model would learn from wrong gradients",
        fails="a result is wrong, or differs between ranks",
        level=1,
        whole=over_collectives(check_sums),
    ),
    Check(
        name="transport",
        looks_at="the network that NCCL says it uses",
        why="a quiet fall-back to TCP costs most of the speed",
        fails="nodes differ",
        warns="sockets although RDMA ports are active",
        level=1,
        whole=over_collectives(check_transport),
    ),
)
