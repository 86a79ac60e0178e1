"""The memory of the GPUs that a run uses, as it stood before the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.facts.gpus import Gpu, find_gpu
from orchestrator.plan.ranks import VISIBLE_NAMES
from orchestrator.values import EnvValue, Node

if TYPE_CHECKING:
    from orchestrator.facts import Facts


def build_gpu_memory(
    node: Node, facts: Facts, wanted: str, env: Iterable[EnvValue]
) -> tuple[tuple[str, int | None], ...]:
    """Give for each GPU that the ranks may use the MiB in use that belonged to no process; None where it is not told."""
    if wanted == "cpu":
        return ()
    return tuple((_key(gpu, facts), _idle_mib(gpu, facts)) for gpu in _used(node, facts, env))


def _used(node: Node, facts: Facts, env: Iterable[EnvValue]) -> tuple[Gpu, ...]:
    given = {value.name: value.value for value in env} | dict(node.env)
    lists = [given[name] for name in VISIBLE_NAMES if name in given]
    words = [word.strip() for word in lists[0].split(",")] if lists else list(node.gpus)
    if not lists and not words:
        return facts.gpus
    return tuple(gpu for gpu in (find_gpu(facts.gpus, word) for word in words) if gpu is not None)


def _key(gpu: Gpu, facts: Facts) -> str:
    # AMD's two tools call one GPU by different ids, and by the same number.
    return gpu.uuid if facts.gpu_kind == "nvidia" and gpu.uuid else str(gpu.index)


def _idle_mib(gpu: Gpu, facts: Facts) -> int | None:
    """What others held before may be gone at the end: it is no part of the level."""
    if gpu.memory_used_mib is None:
        return None
    on_it = {gpu.uuid, str(gpu.index)} if facts.gpu_kind == "amd" else {gpu.uuid}
    others = sum(process.used_mib or 0 for process in facts.gpu_processes if process.uuid in on_it)
    return max(0, gpu.memory_used_mib - others)
