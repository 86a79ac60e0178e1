"""Part g: what the supervisor costs a node."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .bench import Bench, Contender, Must, Part
from .nodes import Nodes, open_nodes
from .quiet import HERE, WINDOW_S, hold
from .timing import BenchError, read_kib
from .usage import read_exact_cpu_s, read_pss_mib

CASE = "8 ranks a node, nothing happens"
OURS = "aorta-launch's supervisor"
RANKS = 8


def measure(bench: Bench, count: int) -> None:
    """Look at all supervisors; the one that costs most is told."""
    with open_nodes(count) as nodes:
        shutil.copy(HERE / "still.py", nodes.shared)
        with hold(nodes, "--nproc-per-node", str(RANKS)):
            pids = find_supervisors(nodes)
            command = f"aorta-launch --nodes nodes.txt --nproc-per-node {RANKS} … still.py"
            bench.compare(
                "supervisor", CASE, count, [Contender(tool=OURS, command=command, measure=lambda: look_at(pids))]
            )


def look_at(pids: Sequence[int]) -> Mapping[str, float]:
    """What each of them costs; the most of all."""
    begin, before = time.monotonic(), [read_exact_cpu_s(pid) for pid in pids]
    time.sleep(WINDOW_S)
    took_s = time.monotonic() - begin
    used = [read_exact_cpu_s(pid) - cpu_s for pid, cpu_s in zip(pids, before, strict=True)]
    return {
        "core_percent": 100 * max(used) / took_s,
        "rss_mib": max(read_kib(pid, "VmRSS") for pid in pids) / 1024,
        "memory_mib": max(read_pss_mib(pid) for pid in pids),
    }


def find_supervisors(nodes: Nodes) -> list[int]:
    """The parents of the agents: one on each node, by this machine's count."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if b"torch.distributed.run" in words and nodes.fake_python.encode() in words:
            found.append(parent)
    if len(set(found)) != nodes.count:
        raise BenchError(f"{len(set(found))} supervisors on {nodes.count} nodes")
    return sorted(set(found))


def build_must(says: str, metric: str, at_most: float, unit: str) -> Must:
    """A must of two nodes."""
    return Must(says=says, case=CASE, nodes=2, tool=OURS, metric=metric, at_most=at_most, unit=unit)


PART = Part(
    word="supervisor",
    title="The supervisor on a node",
    about=(
        f"Windows of {WINDOW_S:g} s, {RANKS} silent ranks a node under a stand-in for torchrun, nodes without GPUs; of all nodes the one "
        "whose supervisor needs most. rss_mib counts the Python that it shares with others too, memory_mib its part of that."
    ),
    sizes=(2,),
    measure=measure,
    musts=(
        build_must("supervisor, memory", "rss_mib", 15, "MiB"),
        build_must("supervisor, one core", "core_percent", 0.5, "%"),
    ),
)
