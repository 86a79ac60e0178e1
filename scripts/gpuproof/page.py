"""docs/gpu-results.md, made from the figures in docs/gpu-results/ by scripts/gpu_proof --page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from . import PROJECT, training
from .results import Results, read_results
from .tables import (
    COLLECTIVES,
    FAULTS,
    KINDS,
    MOST_RATIO,
    TRAINING,
    pick,
    render_collectives,
    render_faults,
    render_origin,
    render_training,
    spread,
)

PAGE = PROJECT / "docs" / "gpu-results.md"
FIGURES = PROJECT / "docs" / "gpu-results"
PARTS = {
    "training": (TRAINING, render_training),
    "collectives": (COLLECTIVES, render_collectives),
    "faults": (FAULTS, render_faults),
}
"""What begins the section of a part, and what renders it as measured on one machine."""
Found = Mapping[str, Sequence[Results]]
INTRO = """# On real GPUs

What was measured on nodes with GPUs, and what was not. This page is made by `scripts/gpu_proof --page` from the figures in [gpu-results/](gpu-results), where
every single one stands. The nodes are made out of one machine by `scripts/gpu_cluster` ([rehearsal.md](rehearsal.md)): between two of them NCCL goes through
sockets over a bridge in memory. The figures say that things work, and what the launcher adds to a training; they say nothing of the speed of a real network.

To repeat it, as root on a machine with GPUs (`--share` where there are fewer GPUs than nodes, and figures of another machine in a folder of their own):

    scripts/gpu_cluster 2 --detach
    scripts/gpu_proof --sequences 512 --nodes /tmp/agpu/nodes.txt --out docs/gpu-results
    scripts/gpu_proof --page
    scripts/gpu_cluster --down
"""
EACH = 2
"""Ranks on a node that hybrid_shard needs to shard anything inside of it."""


def read_all(folder: Path = FIGURES) -> Found:
    """Part → what was measured of it, one machine after the other."""
    found: dict[str, list[Results]] = {}
    for path in sorted(folder.rglob("*.json"), key=lambda path: (len(path.parts), path)):
        results = read_results(path)
        found.setdefault(results.part, []).append(results)
    return found


def build_page(found: Found) -> str:
    """The whole page."""
    sections = [INTRO, "## What was not measured\n", *(f"- {line}" for line in list_missing(found)), ""]
    for part, (intro, render) in PARTS.items():
        sections += [intro] if found.get(part) else []
        for results in found.get(part, ()):
            sections += [f"### {name_machine(results)}\n", *render(results), render_origin(results)]
    return "\n".join(sections)


def list_missing(found: Found) -> list[str]:
    """What this page should show and does not, by what the figures were measured on."""
    missing = [f"{part}: nothing." for part in PARTS if not found.get(part)]
    for part in PARTS:
        if found.get(part) and all(map(is_shared, found[part])):
            machine = found[part][0].machine
            card = machine["gpus"][0] if machine["gpus"] else "machine without GPUs"
            nodes = len(machine["nodes"])
            missing.append(f"{part}: every node with a GPU of its own. {nodes} nodes shared one {card}.")
    missing += list_missing_training(found.get("training", ()))
    if found.get("faults"):
        seen = {row["case"] for results in found["faults"] for row in results.rows}
        missing += [f"faults: {KINDS[kind][0].lower()}{KINDS[kind][1:]}." for kind in KINDS if kind not in seen]
    cards = {name for part in found.values() for results in part for name in results.machine["gpus"]}
    if not any("H100" in name for name in cards):
        missing.append(f"H100: every figure is of {', '.join(sorted(cards)) or 'no GPU'}.")
    missing.append("Nodes that are machines of their own, InfiniBand and RoCE.")
    return missing


def list_missing_training(measured: Sequence[Results]) -> list[str]:
    """The cases that nobody ran, that ran on a shared GPU alone, or that cannot be told to a hundredth."""
    if not measured:
        return []
    cases = [case.label for case in training.list_cases()]
    seen = {row["case"] for results in measured for row in results.rows}
    apart = {row["case"] for results in measured if not is_shared(results) for row in results.rows}
    fine = {
        case
        for results in measured
        for case in seen
        if len(by_hand := pick(results.rows, case, training.BY_HAND)) > 1 and spread(by_hand) <= MOST_RATIO - 1
    }
    told = {"not at all": [case for case in cases if case not in seen]}
    if apart:
        alone = {case.label for case in training.list_cases() if case.alone}
        told["on a GPU of each node's own"] = [case for case in cases if case in seen - apart - alone]
    told["to a hundredth (one run by hand, or runs that lie further apart)"] = [
        case for case in cases if case in seen - fine
    ]
    missing = [f"training, {what}: {', '.join(names)}." for what, names in told.items() if names]
    return missing + list_missing_shards(measured)


def list_missing_shards(measured: Sequence[Results]) -> list[str]:
    """That no node had the GPUs that hybrid_shard needs, or had to share them with another."""
    several = [results for results in measured if min(map(count_gpus, results.machine["nodes"]), default=0) >= EACH]
    if not several:
        words = (
            "two GPUs on each node (a machine with four). hybrid_shard had one rank a node: replicas alone, no shards."
        )
        return [f"training: {words}"]
    if all(map(is_shared, several)):
        return ["training: two GPUs of each node's own (a machine with four). The nodes with two shared both of them."]
    return []


def name_machine(results: Results) -> str:
    """What the nodes had."""
    cards, nodes = results.machine["gpus"], len(results.machine["nodes"])
    if not cards:
        return f"{nodes} nodes without GPUs"
    if is_shared(results):
        each = max(map(count_gpus, results.machine["nodes"]))
        return f"{len(cards)} {cards[0]} that {nodes} nodes share" + (f", {each} on each" if each > 1 else "")
    return f"{nodes} nodes with {' and '.join(map(str, sorted(set(map(count_gpus, results.machine['nodes'])))))} {cards[0]} each"


def count_gpus(own: str) -> int:
    """How many GPUs a node has."""
    return len(own.split(",")) if own else 0


def is_shared(results: Results) -> bool:
    """Some nodes have the same GPU, or none."""
    numbers = [number for own in results.machine["nodes"] for number in own.split(",")]
    return len(set(numbers)) < len(numbers) or "" in numbers


def write_page() -> None:
    """Write the page."""
    PAGE.write_text(build_page(read_all()))
    print(PAGE)
