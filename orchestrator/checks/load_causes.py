"""Says what can have held a GPU, or the processors of a node, back under load, and how to look at it there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from orchestrator.checks.remedies import on_node
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts, Gpu
from orchestrator.facts.load import Gauges, GpuGauge, LoadFacts, MemberFacts
from orchestrator.settings import Settings
from orchestrator.values import Node

CALM_SHARE = 0.02
"""So much stolen time says nothing."""
FULL_CLOCK = 0.95
UNSEEN_CORES = 0.5
"""So much that others take is worth a word, also when they cannot be seen."""


def why_spared(gpu: Gpu, facts: Facts, settings: Settings) -> str:
    """Say who uses a GPU, so that nothing more is put on it; empty when nobody does."""
    # Some tools name the GPU by its number, some not at all.
    foreign = [one for one in facts.gpu_processes if one.uuid in ("", gpu.uuid, str(gpu.index))]
    if foreign:
        return f"pid {foreign[0].pid} ({foreign[0].owner or 'owner not visible'}) uses it"
    used_mib = gpu.memory_used_mib or 0
    return f"{used_mib} MiB of it are in use" if used_mib > threshold(settings, "gpu-free", "warn_mib") else ""


def index_of(member: MemberFacts) -> int:
    """Give the number by which the driver's tools know a GPU."""
    return member.local_rank if member.index is None else member.index


def find_gauges(load: LoadFacts, node_rank: int, kind: str) -> Gauges | None:
    """Find what a node showed under one kind of load."""
    return next((one for one in load.gauges if one.node_rank == node_rank and one.load in (kind, "")), None)


def find_gauge(load: LoadFacts, member: MemberFacts, kind: str) -> GpuGauge | None:
    """Find what a GPU showed under one kind of load."""
    gauges = find_gauges(load, member.node_rank, kind)
    return next((gpu for gpu in gauges.gpus if gpu.index == index_of(member)), None) if gauges else None


def describe_causes(load: LoadFacts, member: MemberFacts, kind: str) -> str:
    """Say what the gauges showed meanwhile that can be the cause; empty when nothing did."""
    if load.device == "cuda":
        gauge = find_gauge(load, member, kind)
        told = [] if gauge is None else _describe_gpu(gauge)
    else:
        gauges = find_gauges(load, member.node_rank, kind)
        told = [*_describe_threads(load, member), *([] if gauges is None else _describe_processors(gauges))]
    return f"; {', '.join(told)}" if told else ""


def _describe_gpu(gauge: GpuGauge) -> list[str]:
    clock, most = gauge.clock_mhz, gauge.clock_max_mhz
    told = [f"clock {clock} of {most} MHz"] if clock and most else [f"clock {clock} MHz"] if clock else []
    told += [f"{gauge.temperature_c} °C"] if gauge.temperature_c is not None else []
    if "power cap" in gauge.throttle and gauge.power_w is not None:
        return [
            *told,
            *(reason for reason in gauge.throttle if reason != "power cap"),
            f"power cap at {gauge.power_w} W",
        ]
    return [*told, *gauge.throttle]


def _describe_threads(load: LoadFacts, member: MemberFacts) -> list[str]:
    known = [one.threads for one in load.members if one.threads]
    usual = statistics.median_high(known) if known else None
    if member.threads and usual and member.threads < usual:
        return [f"{member.threads} threads where most have {usual}"]
    return []


def _describe_processors(gauges: Gauges) -> list[str]:
    told = []
    if gauges.quota_cores is not None:
        told.append(f"a control group allows {gauges.quota_cores:g} cores")
    if gauges.held_s:
        told.append(f"held back for {gauges.held_s:g} s of {gauges.took_s:g} s")
    if gauges.steal_share is not None and gauges.steal_share > CALM_SHARE:
        told.append(f"{100 * gauges.steal_share:.0f} % stolen by the hypervisor")
    clock, most = gauges.clock_mhz, gauges.clock_max_mhz
    if clock and most and clock < FULL_CLOCK * most:
        told.append(f"clock {clock} of {most} MHz")
    if gauges.hot_events:
        told.append(f"slowed down by heat {gauges.hot_events} times")
    return [*told, *_describe_others(gauges)]


def _describe_others(gauges: Gauges) -> list[str]:
    if gauges.foreign:
        first = gauges.foreign[0]
        return [f"pid {first.pid} ({first.owner or '?'}) takes {first.cores:g} cores: {first.command[:60]}"]
    if gauges.busy_share is None or gauges.cores is None or gauges.ours_cores is None:
        return []
    others = gauges.busy_share * gauges.cores - gauges.ours_cores
    return [f"processes that cannot be seen from here take {others:.1f} cores"] if others >= UNSEEN_CORES else []


def look_closer(node: Node, facts: Facts, load: LoadFacts, slow: Sequence[MemberFacts], kind: str) -> str:
    """Build the line that shows on the node what holds it back."""
    if load.device == "cuda":
        return on_node(node, watch_gpus(facts, slow))
    gauges = find_gauges(load, facts.node_rank, kind)
    if gauges is not None and gauges.foreign:
        return on_node(node, f"ps -o pid,user,pcpu,etime,args -p {gauges.foreign[0].pid}")
    return on_node(node, "top -b -n 1 | head -n 12")


def watch_gpus(facts: Facts, members: Sequence[MemberFacts]) -> str:
    """Build the command that shows clocks and heat of some GPUs."""
    if facts.gpu_kind == "amd":
        return "amd-smi metric" if members else "amd-smi"
    numbers = ",".join(str(index_of(member)) for member in members)
    return f"nvidia-smi -q -d CLOCK,TEMPERATURE,POWER,PERFORMANCE -i {numbers}"
