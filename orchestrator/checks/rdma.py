"""Checks of InfiniBand and RoCE, and of what GPUDirect needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.gpu_view import why_unused
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.facts import Facts
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]
DMABUF_KERNEL = (5, 12)
"""The kernel that first let a network card reach a GPU without a module between them."""


def _untold(facts: Facts, settings: Settings) -> Seen | None:
    """Say why there is nothing to judge on this node alone; None when it has ports."""
    unused = why_unused(facts, settings)
    if unused is not None:
        # Without GPUs collectives go over TCP.
        return unused
    why = facts.why_unknown("rdma")
    if why or facts.rdma.ports is None:
        return unknown(f"the ports could not be read: {why}") if why else skip("no RDMA device")
    return None if facts.rdma.ports else skip("no RDMA device")


def compare_ports(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """As many ports are active as on most nodes."""
    judged = [fact for fact in facts if fact.rdma.ports is not None and why_unused(fact, settings) is None]
    counts = Counter(len(fact.rdma.active) for fact in judged)
    # Of two nodes the one with more ports is the whole one.
    usual = max(counts, key=lambda count: (counts[count], count), default=0)
    return [_judge_ports(node, fact, usual, settings) for node, fact in zip(nodes, facts, strict=True)]


def _judge_ports(node: Node, facts: Facts, usual: int, settings: Settings) -> Seen:
    untold = _untold(facts, settings)
    if untold is not None and (untold.status == "unknown" or not usual or why_unused(facts, settings)):
        return untold
    active = facts.rdma.active
    if len(active) >= usual:
        return ok(f"{len(active)} active") if active else skip("no active port on any node")
    down = [port for port in facts.rdma.ports or () if not port.active]
    told = ", ".join(f"{port.name} {port.state or '?'} ({port.physical or '?'})" for port in down)
    detail = f"{len(active)} of {usual} ports active" + (f": {told}" if told else ": no RDMA device")
    if not down:
        return fail(detail, on_node(node, "sudo modprobe mlx5_ib", terminal=True))
    first = down[0]
    if first.link_layer == "Ethernet" and first.interface:
        return fail(detail, on_node(node, f"sudo ip link set {first.interface} up", terminal=True))
    return fail(detail, on_node(node, f"ibstat {first.device} {first.port}"))


def compare_rates(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Every port is as fast as the one of its name on most nodes."""
    rates: dict[str, Counter[float]] = {}
    for port in (port for fact in facts for port in fact.rdma.active):
        if port.rate_gbits is not None:
            rates.setdefault(port.name, Counter())[port.rate_gbits] += 1
    usual = {name: max(counts, key=lambda rate: (counts[rate], rate)) for name, counts in rates.items()}
    seen: list[Seen] = []
    for node, fact in zip(nodes, facts, strict=True):
        untold = _untold(fact, settings)
        active = [(port, port.rate_gbits) for port in fact.rdma.active if port.rate_gbits is not None]
        slow = [(port, rate) for port, rate in active if rate < usual[port.name]]
        if untold is not None or not active:
            seen.append(untold or skip("no active port"))
        elif slow:
            told = ", ".join(f"{port.name} {rate:g} Gb/s, elsewhere {usual[port.name]:g}" for port, rate in slow)
            seen.append(warn(told, on_node(node, f"ibstat {slow[0][0].device} {slow[0][0].port}; rdma link show")))
        else:
            seen.append(ok(", ".join(f"{rate:g} Gb/s" for rate in sorted({rate for _, rate in active}))))
    return seen


def check_verbs(node: Node, facts: Facts, settings: Settings) -> Seen:
    """This user may use the RDMA devices."""
    untold = _untold(facts, settings)
    if untold is not None or not facts.rdma.active:
        return untold or skip("no active port")
    if facts.rdma.verbs:
        return ok("usable")
    words = f"ls -l /dev/infiniband; sudo modprobe ib_uverbs; sudo usermod -aG rdma {facts.user}"
    return warn(f"{facts.user} may not use /dev/infiniband/uverbs*", on_node(node, words, terminal=True))


def check_gid(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The address that NCCL_IB_GID_INDEX names is one of RoCE version 2 over IPv4."""
    untold = _untold(facts, settings)
    ports = [port for port in facts.rdma.active if port.link_layer == "Ethernet"]
    if untold is not None or not ports:
        return untold or skip("no RoCE port")
    named = settings.env.get("NCCL_IB_GID_INDEX", "")
    good = {gid.index for port in ports for gid in port.gids if gid.ipv4 and "v2" in gid.kind}
    show = on_node(node, f"grep -H . /sys/class/infiniband/{ports[0].device}/ports/{ports[0].port}/gids/*")
    if not good:
        iface = ports[0].interface or "INTERFACE"
        give = on_node(node, f"sudo ip address add ADDRESS/24 dev {iface}", terminal=True)
        return warn(f"{ports[0].name} has no address of RoCE v2 over IPv4", give)
    if not named:
        return ok(f"RoCE v2 over IPv4 at index {min(good)}")
    wrong = [p for p in ports if not any(str(g.index) == named and g.ipv4 and "v2" in g.kind for g in p.gids)]
    if wrong:
        names = ", ".join(port.name for port in wrong)
        return warn(f"NCCL_IB_GID_INDEX={named} is no RoCE v2 address over IPv4 on {names}; {min(good)} is", show)
    return ok(f"NCCL_IB_GID_INDEX={named} fits")


def check_peer_memory(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The network cards can reach the memory of the GPUs."""
    unused = why_unused(facts, settings)
    if unused is not None:
        return unused
    # Amazon's adapter has a way of its own, and AMD's driver brings its own.
    ports = [port for port in facts.rdma.active if not port.device.startswith("efa")]
    if not ports or facts.gpu_kind != "nvidia":
        return skip("no InfiniBand or RoCE beside GPUs of NVIDIA")
    if facts.rdma.peer_modules:
        return ok(f"by {facts.rdma.peer_modules[0]}")
    if facts.health.module_open and _kernel(facts.kernel) >= DMABUF_KERNEL:
        return ok("by dma-buf")
    return warn(
        "neither nvidia_peermem nor dma-buf is there", on_node(node, "sudo modprobe nvidia-peermem", terminal=True)
    )


def _kernel(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("-", maxsplit=1)[0].split(".")[:2] if part.isdigit())


CHECKS: tuple[Check, ...] = (
    Check(
        name="rdma-ports",
        looks_at="state of the InfiniBand and RoCE ports",
        why="NCCL would wait for a path that there is not, or use TCP",
        fails="fewer are active than on most nodes",
        across=compare_ports,
    ),
    Check(
        name="rdma-rate",
        looks_at="rate of the active ports",
        why="the slowest link sets the pace of every collective",
        warns="a port is slower than the one of its name on most nodes",
        across=compare_rates,
    ),
    Check(
        name="rdma-devices",
        looks_at="/dev/infiniband as this user",
        why="NCCL would use TCP",
        warns="this user may not use it",
        each=check_verbs,
    ),
    Check(
        name="rdma-gid",
        looks_at="addresses of the RoCE ports, and NCCL_IB_GID_INDEX of launch.env",
        why="NCCL could not reach its peers: ibv_modify_qp failed",
        warns="there is none of RoCE v2 over IPv4, or the index names another",
        each=check_gid,
    ),
    Check(
        name="peer-memory",
        looks_at="nvidia_peermem or dma-buf where there is RDMA",
        why="NCCL copies through main memory, at half the rate or less",
        warns="there is neither",
        each=check_peer_memory,
    ),
)
