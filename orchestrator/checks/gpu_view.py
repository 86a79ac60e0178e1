"""What the checks of GPUs share: which GPUs count, whether they are used at all, and how they are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from orchestrator.checks.hardware import usable_gpus
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, skip, unknown
from orchestrator.facts import Facts
from orchestrator.facts.health import GpuHealth
from orchestrator.settings import Settings
from orchestrator.values import Node

Gpus = tuple[GpuHealth, ...]
NO_TIME = "no answer within"
"""What a hanging tool leaves behind as its answer."""


def why_unused(facts: Facts, settings: Settings) -> Seen | None:
    """Say why the run will not use a GPU of this node; None when it will."""
    if settings.nproc_per_node == "cpu":
        return skip("the run uses no GPU")
    if facts.torch_version and not (facts.torch_cuda or facts.torch_hip):
        return skip(f"torch {facts.torch_version} has no GPU code")
    if facts.gpus or facts.hidden_gpus or facts.health.pci:
        return None
    trouble = facts.why_unknown("gpus")
    # An image may bring the tool to a machine that has nothing for it: then it fails, and at once.
    return skip("no GPU") if not trouble or (facts.health.pci == () and NO_TIME not in trouble) else None


def used_gpus(node: Node, facts: Facts) -> Gpus:
    """Give the health of the GPUs that the ranks may use; of all where it is not known which."""
    models = {gpu.uuid: gpu.model for gpu in facts.gpus} | {str(gpu.index): gpu.model for gpu in facts.gpus}
    named = [
        gpu if gpu.model else gpu.model_copy(update={"model": models.get(gpu.uuid) or models.get(str(gpu.index), "")})
        for gpu in facts.health.gpus
    ]
    ours = {gpu.uuid for gpu in usable_gpus(node, facts)}
    chosen = tuple(gpu for gpu in named if gpu.uuid in ours)
    return chosen or tuple(named)


def judge_gpus(node: Node, facts: Facts, settings: Settings, judge: Callable[[Gpus], Seen]) -> Seen:
    """Judge the GPUs that will be used, where the driver tells of them."""
    unused = why_unused(facts, settings)
    if unused is not None:
        return unused
    gpus = used_gpus(node, facts)
    if gpus:
        return judge(gpus)
    why = facts.why_unknown("health") or facts.why_unknown("health.gpus") or facts.why_unknown("gpus")
    if why:
        return unknown(f"the driver does not tell: {why}")
    return skip("no GPU that the session may use")


def judge_all(
    nodes: Sequence[Node], facts: Sequence[Facts], settings: Settings, judge: Callable[[Node, Facts, Gpus], Seen]
) -> list[Seen]:
    """Judge the GPUs of every node, for a check that knows their peers."""

    def judge_one(node: Node, fact: Facts) -> Seen:
        return judge_gpus(node, fact, settings, lambda gpus: judge(node, fact, gpus))

    return [judge_one(node, fact) for node, fact in zip(nodes, facts, strict=True)]


def untold(node: Node, facts: Facts, what: str) -> Seen:
    """Say that this driver does not tell something of its GPUs."""
    tool = "nvidia-smi -q" if facts.gpu_kind == "nvidia" else "amd-smi metric"
    return unknown(f"the driver does not tell {what}", on_node(node, tool))


def name_gpus(gpus: Iterable[GpuHealth]) -> str:
    """Name GPUs by their index: GPU 3, GPUs 0,1,7."""
    numbers = [str(gpu.index) for gpu in gpus]
    return f"GPU{'s' if len(numbers) > 1 else ''} {','.join(numbers)}"


def reset(node: Node, facts: Facts, gpus: Iterable[GpuHealth]) -> str:
    """Build the line that resets GPUs, which nothing may use meanwhile."""
    numbers = [str(gpu.index) for gpu in gpus]
    if facts.gpu_kind == "amd":
        return on_node(node, "; ".join(f"sudo amd-smi reset --gpureset --gpu {n}" for n in numbers), terminal=True)
    return on_node(node, f"sudo nvidia-smi --gpu-reset -i {','.join(numbers)}", terminal=True)


def leave_out(node: Node, gpus: Sequence[GpuHealth]) -> str:
    """Build the words that go on without the node."""
    return f"have {name_gpus(gpus)} replaced, and go on without the node: --exclude {node.name}"


def reboot(node: Node) -> str:
    """Build the line that starts the node anew."""
    return on_node(node, "sudo reboot", terminal=True)


def of_all_nodes(nodes: Sequence[Node], facts: Sequence[Facts], settings: Settings) -> list[Gpus]:
    """Give the GPUs that will be used, node by node."""
    return [
        used_gpus(node, fact) if why_unused(fact, settings) is None else ()
        for node, fact in zip(nodes, facts, strict=True)
    ]


def usual(values: Iterable[float]) -> float | None:
    """Give the most frequent value; of two as frequent, the larger one; None when there is none."""
    counted = Counter(values)
    return max(counted, key=lambda value: (counted[value], value), default=None)
