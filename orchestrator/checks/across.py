"""Checks that compare nodes: the majority is plain, the outliers are told."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.pip import pip_line, torch_line
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]


def compare(
    values: Sequence[str | None], nodes: Nodes, what: str, differ: Callable[[int, str, str], Seen]
) -> list[Seen]:
    """Judge each value against the most frequent one; the head's counts first where two are as frequent."""
    known = Counter(value for value in values if value is not None)
    if not known:
        return [skip(f"no {what}") for _ in values]
    usual, number = known.most_common(1)[0]
    seen: list[Seen] = []
    for rank, value in enumerate(values):
        if value is None:
            seen.append(skip(f"no {what}"))
        elif value == usual:
            seen.append(ok(f"{what} {value}"))
        else:
            there = nodes[values.index(usual)].name if number == 1 else f"{number} of {len(values)} nodes"
            seen.append(differ(rank, f"{what} {value}, but {usual} on {there}", usual))
    return seen


def compare_torch(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Torch is the same version and build everywhere."""
    del settings
    return compare(
        [fact.torch_version for fact in facts],
        nodes,
        "torch",
        lambda rank, detail, usual: fail(detail, torch_line(nodes[rank], facts[rank], usual)),
    )


def compare_python(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Python has the same major and minor version everywhere."""
    del settings
    return compare(
        [".".join(fact.python_version.split(".")[:2]) or None for fact in facts],
        nodes,
        "Python",
        lambda rank, detail, usual: warn(
            detail, f"name a Python {usual} on {nodes[rank].name}: python=/path in the node list"
        ),
    )


def compare_cuda(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Torch was built for the same CUDA or ROCm everywhere."""
    del settings
    reference = Counter(fact.torch_version for fact in facts if fact.torch_version).most_common(1)
    version = reference[0][0] if reference else ""
    return compare(
        [_runtime(fact) for fact in facts],
        nodes,
        "runtime",
        lambda rank, detail, _: fail(detail, torch_line(nodes[rank], facts[rank], version or "")),
    )


def _runtime(facts: Facts) -> str | None:
    if facts.torch_version is None:
        return None
    if facts.torch_hip:
        return f"ROCm {facts.torch_hip}"
    return f"CUDA {facts.torch_cuda}" if facts.torch_cuda else "CPU"


def compare_nccl(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """NCCL is the same version everywhere; different ones hang or fail without a word."""
    del settings
    return compare(
        [fact.nccl_version for fact in facts],
        nodes,
        "NCCL",
        lambda rank, detail, usual: fail(
            detail,
            pip_line(
                nodes[rank],
                facts[rank],
                [f"nvidia-nccl-cu{(facts[rank].torch_cuda or '12').split('.')[0]}=={usual}"],
            ),
        ),
    )


def compare_gpu_model(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """All GPUs are of one model, and no node is without where others have some."""
    mixed = any(fact.gpus for fact in facts) and settings.nproc_per_node != "cpu"
    models = [", ".join(sorted({gpu.model for gpu in fact.gpus})) or None for fact in facts]
    seen = compare(
        models,
        nodes,
        "GPU",
        lambda rank, detail, _: warn(
            detail, f"the slowest GPU sets the pace; leave it out: --exclude {nodes[rank].name}"
        ),
    )
    for rank, (node, fact) in enumerate(zip(nodes, facts, strict=True)):
        if mixed and not fact.gpus and not fact.why_unknown("gpus"):
            seen[rank] = fail(
                "no GPU, but other nodes have some",
                f"leave it out: --exclude {node.name}; or use no GPU anywhere: --nproc-per-node cpu",
            )
        elif fact.why_unknown("gpus"):
            seen[rank] = unknown(f"GPUs could not be asked: {fact.why_unknown('gpus')}")
    return seen


def compare_clock(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """The clocks agree, measured against the median of the nodes and the launch host."""
    offsets = [fact.clock_offset_s for fact in facts]
    # The launch host is one more clock: of two nodes that differ it tells which one is off.
    middle = statistics.median_low([0.0, *(offset for offset in offsets if offset is not None)])
    seen: list[Seen] = []
    for node, fact, offset in zip(nodes, facts, offsets, strict=True):
        if offset is None:
            seen.append(unknown("not measured"))
            continue
        apart = offset - middle
        detail = f"{apart:+.3f} s \u00b1 {fact.clock_error_s or 0.0:.3f} s"
        remedy = on_node(node, "sudo systemctl restart systemd-timesyncd || sudo chronyc makestep", terminal=True)
        if abs(apart) > threshold(settings, "clock", "fail_s"):
            seen.append(fail(f"{detail} against the others", remedy))
        elif abs(apart) > threshold(settings, "clock", "warn_s"):
            seen.append(warn(f"{detail} against the others", remedy))
        else:
            seen.append(ok(detail))
    return seen


def compare_machines(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """No two lines of the node list are one machine."""
    del settings
    # A container shares the boot id with its machine and has a network of its own: that is a node of its own.
    keys = [fact.machine for fact in facts]
    seen: list[Seen] = []
    for rank, (node, key) in enumerate(zip(nodes, keys, strict=True)):
        twins = [nodes[other].name for other, there in enumerate(keys) if there == key and other != rank]
        if not all(key):
            seen.append(unknown("the machine does not say which one it is"))
        elif twins:
            remedy = f"take {node.name} or {twins[0]} out of the node list; to try it all the same: --skip same-machine"
            seen.append(fail(f"is the same machine as {', '.join(twins)}", remedy))
        else:
            seen.append(ok(f"{facts[rank].hostname}, boot {key[0][:8]}"))
    return seen


MACHINES = (
    Check(
        name="same-machine",
        looks_at="boot id and network of every node",
        why="two agents on one machine fight for GPUs and ports",
        fails="two lines of the node list are one machine",
        across=compare_machines,
    ),
)
SOFTWARE = (
    Check(
        name="python-equal",
        looks_at="major and minor version of Python",
        why="pickles and byte code may differ between ranks",
        warns="a node differs from most",
        across=compare_python,
    ),
    Check(
        name="torch-equal",
        looks_at="version and build of torch",
        why="ranks of different torch hang or fail at the first collective",
        fails="a node differs from most",
        across=compare_torch,
    ),
    Check(
        name="cuda-equal",
        looks_at="the CUDA or ROCm that torch was built for",
        why="the ranks have no common backend",
        fails="a node differs from most",
        across=compare_cuda,
    ),
    Check(
        name="nccl-equal",
        looks_at="version of the NCCL package",
        why="different NCCL hang or fail without a word",
        fails="a node differs from most",
        across=compare_nccl,
    ),
)
HARDWARE = (
    Check(
        name="gpu-model",
        headline=True,
        looks_at="model of the GPUs",
        why="the slowest GPU sets the pace, and small memory ends the run",
        fails="a node has no GPU where others have some",
        warns="a node has other GPUs than most",
        across=compare_gpu_model,
    ),
    Check(
        name="clock",
        headline=True,
        looks_at="clock against the median of the nodes and the launch host",
        why="from 15 s on agents refuse to meet, and logs are out of order",
        fails="more than {fail_s:g} s apart",
        warns="more than {warn_s:g} s apart",
        across=compare_clock,
    ),
)
