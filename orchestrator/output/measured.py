"""What levels 1 and 2 measured, as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from orchestrator.checks.rates import bus_gbs
from orchestrator.facts import Survey
from orchestrator.facts.collectives import CollectivesFacts, WorldFacts
from orchestrator.output.load_table import render_load
from orchestrator.output.table import align_cells
from orchestrator.values import Node

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
TEN = 10
MOST_PAIRS = 8
"""Of more nodes the matrix does not fit a screen; the findings and the JSON document have it all."""


def render_measured(nodes: Sequence[Node], survey: Survey) -> list[RenderableType]:
    """Render the tables of what was measured; none where nothing was."""
    parts: list[RenderableType] = []
    found = survey.collectives
    if found is not None:
        for world in [*found.alone, *([found.world] if found.world is not None else [])]:
            if world.rows:
                parts += [Text(), *render_world(nodes, world, found.device)]
        if found.pairs and len(nodes) <= MOST_PAIRS:
            parts += [Text(), *render_pairs(nodes, found)]
    if survey.load is not None and survey.load.members:
        parts += [Text(), *render_load(nodes, survey.load)]
    return parts


def _whole(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:.0f}" if rate >= TEN else f"{rate:.2g}"


def render_world(nodes: Sequence[Node], world: WorldFacts, device: str) -> list[Text]:
    """Render latency and bandwidth of all_reduce by size."""
    where = "all nodes" if world.node_rank is None else f"node {world.node_rank} {nodes[world.node_rank].name}"
    backend = "NCCL" if device == "cuda" else "gloo"
    table = [[Text(head, "bold") for head in ("size", "time", "algbw", "busbw")]]
    for row in world.rows:
        algbw = row.bytes / max(row.seconds, 1e-9) / 1e9
        bus = bus_gbs(row.bytes, row.seconds, world.size)
        cells = (render_size(row.bytes), render_time(row.seconds), f"{algbw:.3f} GB/s", f"{bus:.3f} GB/s")
        table.append([Text(cell) for cell in cells])
    return [Text(f"all_reduce, {world.size} ranks of {where}, {backend}"), *align_cells(table)]


def render_size(size: int) -> str:
    """Render a number of bytes that is a power of two."""
    unit, name = next((unit, name) for unit, name in UNITS if size >= unit)
    return f"{size // unit} {name}"


def render_time(seconds: float) -> str:
    """Render a short time."""
    return f"{seconds * 1e6:.0f} \N{MICRO SIGN}s" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"  # noqa: PLR2004 - a millisecond


def render_pairs(nodes: Sequence[Node], found: CollectivesFacts) -> list[Text]:
    """Render who sends how much to whom; a row sends, a column takes."""
    rates: dict[tuple[int, int], str] = {}
    for pair in found.pairs:
        there, back = ("closed", "closed") if pair.trouble else (_whole(pair.there_mbs), _whole(pair.back_mbs))
        rates[pair.first, pair.second], rates[pair.second, pair.first] = there, back
    ranks = range(len(nodes))
    table = [[Text("MB/s from \\ to", "bold"), *(Text(f"{rank} {nodes[rank].name}", "bold") for rank in ranks)]]
    table += [[Text(f"{row} {nodes[row].name}"), *(Text(rates.get((row, to), "")) for to in ranks)] for row in ranks]
    return align_cells(table)
