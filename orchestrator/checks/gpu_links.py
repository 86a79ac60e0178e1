"""Checks of how each GPU is connected: PCIe, NVLink and the fabric of NVSwitches."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.gpu_view import Gpus, judge_all, judge_gpus, name_gpus, of_all_nodes, untold, usual
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, warn
from orchestrator.facts import Facts
from orchestrator.facts.health import GpuHealth
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]


def check_pcie(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Every GPU has all its lanes."""

    def judge(gpus: Gpus) -> Seen:
        narrow = [gpu for gpu in gpus if gpu.pcie_width and gpu.pcie_width < (gpu.pcie_width_most or 0)]
        if narrow:
            told = ", ".join(f"GPU {gpu.index}: {gpu.pcie_width} of {gpu.pcie_width_most} lanes" for gpu in narrow)
            return warn(told, on_node(node, f"sudo lspci -vv -s {narrow[0].pci} | grep LnkSta", terminal=True))
        widths = sorted({gpu.pcie_width for gpu in gpus if gpu.pcie_width})
        return ok(", ".join(f"{width} lanes" for width in widths)) if widths else skip("not told by this driver")

    return judge_gpus(node, facts, settings, judge)


def compare_nvlink(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """No GPU has fewer links to its peers than others of its model."""
    links: dict[str, list[float]] = {}
    for gpu in (gpu for gpus in of_all_nodes(nodes, facts, settings) for gpu in gpus):
        if gpu.links_up is not None:
            links.setdefault(gpu.model, []).append(gpu.links_up)

    def judge(node: Node, fact: Facts, gpus: Gpus) -> Seen:
        known = [gpu for gpu in gpus if gpu.links_up is not None]
        fewer = [gpu for gpu in known if (gpu.links_up or 0) < (usual(links[gpu.model]) or 0)]
        remedy = on_node(node, "nvidia-smi nvlink -s; nvidia-smi nvlink -e")
        if fewer:
            told = ", ".join(f"GPU {gpu.index}: {gpu.links_up} links up" for gpu in fewer)
            detail = f"{told}; most of its model have {usual(links[fewer[0].model]):g}"
            # Between switches every link counts; cards may well be bridged in pairs only.
            switched = fact.health.switches or any(gpu.fabric_state for gpu in fewer)
            return fail(detail, remedy) if switched else warn(detail, remedy)
        partly = [gpu for gpu in known if gpu.links_up and gpu.links_down]
        if partly:
            told = ", ".join(f"GPU {gpu.index}: {gpu.links_down} links down, {gpu.links_up} up" for gpu in partly)
            return warn(told, remedy)
        counts = sorted({gpu.links_up or 0 for gpu in known})
        return ok(f"{', '.join(map(str, counts))} links up") if any(counts) else skip("no NVLink in use")

    return judge_all(nodes, facts, settings, judge)


def check_fabric(node: Node, facts: Facts, settings: Settings) -> Seen:
    """On a machine with NVSwitches the fabric manager has joined the GPUs."""
    start = on_node(node, "sudo systemctl enable --now nvidia-fabricmanager", terminal=True)

    def judge(gpus: Gpus) -> Seen:
        told: list[GpuHealth] = [gpu for gpu in gpus if gpu.fabric_state]
        bad = [gpu for gpu in told if gpu.fabric_state != "Completed" or gpu.fabric_status not in ("", "Success")]
        if bad:
            state = f"{bad[0].fabric_state}, {bad[0].fabric_status or 'no status'}"
            return fail(f"the fabric of {name_gpus(bad)} is not ready: {state}", start)
        if told:
            return ok("the fabric is ready")
        if not facts.health.switches:
            return skip("no NVSwitch")
        if facts.health.fabric_manager is False:
            return fail(f"{facts.health.switches} NVSwitches, and no fabric manager runs", start)
        return ok("the fabric manager runs") if facts.health.fabric_manager else untold(node, facts, "its fabric")

    return judge_gpus(node, facts, settings, judge)


CHECKS: tuple[Check, ...] = (
    Check(
        name="gpu-pcie",
        looks_at="PCIe lanes of each GPU",
        why="copies to the GPU and the network are slow",
        warns="fewer lanes than it and its slot have",
        each=check_pcie,
    ),
    Check(
        name="gpu-nvlink",
        looks_at="NVLinks of each GPU, against those of its model",
        why="collectives fail, or fall back to PCIe",
        fails="on a machine with NVSwitches fewer are up than on most GPUs of its model",
        warns="the same without NVSwitches, or some are down",
        across=compare_nvlink,
    ),
    Check(
        name="gpu-fabric",
        looks_at="fabric of a machine with NVSwitches",
        why="CUDA would not start: error 802, system not yet initialized",
        fails="it is not ready, or no fabric manager runs",
        each=check_fabric,
    ),
)
