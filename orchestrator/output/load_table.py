"""What level 2 measured, as a table for people: whoever is furthest behind its equals comes first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from orchestrator.checks.load import COMPUTE, HOST, MEMORY, share_of, usual_rates
from orchestrator.checks.load_causes import find_gauge, find_gauges, index_of
from orchestrator.facts.load import LoadFacts, MemberFacts
from orchestrator.output.table import align_cells
from orchestrator.values import Node

MOST_MEMBERS = 16
"""More do not fit a screen; the JSON document has all."""
LATE_SHARE = 0.95
GPU_HEADS = ("GPU", "TFLOPS", "memory GB/s", "to GPU", "from GPU", "clock MHz", "\N{DEGREE SIGN}C", "slowed by")
PROCESSOR_HEADS = ("threads", "TFLOPS", "memory GB/s", "clock MHz", "held back")


def render_load(nodes: Sequence[Node], load: LoadFacts) -> list[Text]:
    """Render the rates of every GPU, or of the processors of every node, with what the gauges showed meanwhile."""
    behind = {(one.node_rank, one.local_rank): _find_share(load, one) for one in load.members}

    def share(member: MemberFacts) -> float:
        return behind[member.node_rank, member.local_rank]

    members = sorted(load.members, key=lambda member: (share(member), member.node_rank, member.local_rank))
    models = sorted({member.model for member in members if member.model})
    heads = (*(["model"] if len(models) > 1 else []), *(GPU_HEADS if load.device == "cuda" else PROCESSOR_HEADS))
    table = [[Text(head, "bold") for head in ("node", "to equals", *heads)]]
    for member in members[:MOST_MEMBERS]:
        cells = [f"{member.node_rank} {nodes[member.node_rank].name}", _render_share(member, share(member))]
        cells += [member.model] if len(models) > 1 else []
        cells += _gpu_cells(load, member) if load.device == "cuda" else _processor_cells(load, member)
        table.append([Text(cell, "yellow" if share(member) < LATE_SHARE else "") for cell in cells])
    more = len(members) - MOST_MEMBERS
    rest = [Text(f"and {more} more, which are less far behind", "dim")] if more > 0 else []
    what = f", {models[0]}" if len(models) == 1 else ""
    return [Text(f"under load{what}; whoever is furthest behind its equals first"), *align_cells(table), *rest]


def _find_share(load: LoadFacts, member: MemberFacts) -> float:
    """Give the part of what its equals reach, by the rate in which it is furthest behind."""
    if member.spared:
        return 2.0  # it is behind nobody
    if member.tflops is None:
        return 0.0
    measures = [measure for measure in (COMPUTE, MEMORY, HOST) if measure.rate(member) is not None]
    return min(share_of(member, usual_rates(load, measure.rate), measure.rate) for measure in measures)


def _gpu_cells(load: LoadFacts, member: MemberFacts) -> tuple[str, ...]:
    gauge = find_gauge(load, member, COMPUTE.load)
    shown = ("", "", "")
    if gauge is not None and not member.spared:
        heat = "" if gauge.temperature_c is None else str(gauge.temperature_c)
        shown = (_render_clock(gauge.clock_mhz, gauge.clock_max_mhz), heat, ", ".join(gauge.throttle))
    rates = (member.tflops, member.memory_gbs, member.to_device_gbs, member.from_device_gbs)
    return (str(index_of(member)), *(_render_rate(member, rate) for rate in rates), *shown)


def _processor_cells(load: LoadFacts, member: MemberFacts) -> tuple[str, ...]:
    gauges = find_gauges(load, member.node_rank, COMPUTE.load)
    clock, held = "", ""
    if gauges is not None:
        clock = _render_clock(gauges.clock_mhz, gauges.clock_max_mhz)
        held = f"{gauges.held_s:g} of {gauges.took_s:g} s" if gauges.held_s else ""
    rates = (_render_rate(member, member.tflops), _render_rate(member, member.memory_gbs))
    return (str(member.threads or ""), *rates, clock, held)


def _render_share(member: MemberFacts, share: float) -> str:
    if member.spared:
        return "in use"
    return "broken" if member.tflops is None else f"{100 * (share - 1):+.1f} %"


def _render_rate(member: MemberFacts, rate: float | None) -> str:
    return ("" if member.spared else "?") if rate is None else f"{rate:.4g}"


def _render_clock(clock: int | None, most: int | None) -> str:
    if clock is None:
        return ""
    return f"{clock} of {most}" if most else str(clock)
