"""Checks of the GPUs of one node."""

from __future__ import annotations

from orchestrator.checks.check import Check
from orchestrator.checks.pip import torch_line
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts, Gpu, find_gpu
from orchestrator.settings import Settings
from orchestrator.values import Node


def usable_gpus(node: Node, facts: Facts) -> tuple[Gpu, ...]:
    """Give the GPUs that the ranks may use: those of the session, or those that the node list names."""
    if not node.gpus:
        return facts.gpus
    return tuple(gpu for gpu in (find_gpu(facts.gpus, word) for word in node.gpus) if gpu is not None)


def wanted_processes(node: Node, facts: Facts, settings: Settings) -> int | None:
    """Count the processes that were asked for; None: as many as there are GPUs."""
    if node.slots is not None:
        return node.slots
    if settings.nproc_per_node.isdecimal():
        return int(settings.nproc_per_node)
    return facts.cores if settings.nproc_per_node == "cpu" else None


def check_gpu_driver(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The driver answers, and torch can use what it shows."""
    del settings
    trouble = facts.why_unknown("gpus")
    if trouble:
        tool = (
            "nvidia-smi" if "nvidia" in trouble else "amd-smi" if "amd" in trouble or "kfd" in trouble else "nvidia-smi"
        )
        return unknown(f"GPUs could not be asked: {trouble}", on_node(node, tool))
    if not facts.gpus:
        hidden = f", {facts.hidden_gpus} hidden by {_hiding(facts)}" if facts.hidden_gpus else ""
        return ok(f"no GPU{hidden}")
    seen = f"{count_gpus(len(facts.gpus))}, driver {facts.driver_version or 'unknown'}"
    if facts.torch_version is None or facts.torch_cuda or facts.torch_hip:
        return ok(seen)
    return warn(f"{seen}, but torch {facts.torch_version} has no GPU code", torch_line(node, facts))


def _hiding(facts: Facts) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted((facts.visible_devices or {}).items()))


def count_gpus(number: int) -> str:
    """Count GPUs in words."""
    return "1 GPU" if number == 1 else f"{number} GPUs"


def check_gpu_count(node: Node, facts: Facts, settings: Settings) -> Seen:
    """There are as many GPUs as the plan needs, and the ones that the node list names exist."""
    missing = [word for word in node.gpus if find_gpu(facts.gpus, word) is None]
    if missing:
        known = ", ".join(str(gpu.index) for gpu in facts.gpus) or "none"
        return fail(
            f"gpus={','.join(missing)} is not among its GPUs (it has {known})",
            f"correct gpus= of {node.name} in the node list; its GPUs: {on_node(node, 'nvidia-smi -L')}",
        )
    gpus = usable_gpus(node, facts)
    wanted = wanted_processes(node, facts, settings)
    if wanted is None:
        if gpus or settings.nproc_per_node == "auto":
            return ok(f"{count_gpus(len(gpus))}" if gpus else "no GPU: one process")
        return fail("no GPU, and a process for each GPU was asked for", "give --nproc-per-node auto, cpu or a number")
    if not gpus or wanted <= len(gpus) or settings.nproc_per_node == "cpu" or not (facts.torch_cuda or facts.torch_hip):
        return ok(f"{wanted} processes, {count_gpus(len(gpus)) if gpus else 'no GPU'}")
    name = f"slots={node.slots} of {node.name} in the node list" if node.slots else f"--nproc-per-node {wanted}"
    hidden = f"; {facts.hidden_gpus} more are hidden by {_hiding(facts)}" if facts.hidden_gpus else ""
    return fail(f"{wanted} processes for {count_gpus(len(gpus))}{hidden}", f"lower {name} to {len(gpus)}")


def check_gpu_free(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Nobody else uses the GPUs."""
    gpus = usable_gpus(node, facts)
    if not gpus:
        return skip("no GPU")
    ours = {gpu.uuid for gpu in gpus} | {str(gpu.index) for gpu in gpus}
    foreign = [process for process in facts.gpu_processes if not process.uuid or process.uuid in ours]
    if foreign:
        seen = "; ".join(
            f"pid {process.pid} ({process.owner or 'owner not visible'}): {process.command}, "
            f"{'?' if process.used_mib is None else process.used_mib} MiB"
            for process in foreign
        )
        pids = ",".join(str(process.pid) for process in foreign)
        return fail(
            f"in use by {seen}",
            f"{on_node(node, f'ps -o pid,user,etime,args -p {pids}')}; or go on with --skip gpu-free",
        )
    used = {gpu.index: gpu.memory_used_mib for gpu in gpus if gpu.memory_used_mib is not None}
    busy = {index: mib for index, mib in used.items() if mib > threshold(settings, "gpu-free", "warn_mib")}
    if busy:
        seen = ", ".join(f"GPU {index}: {mib} MiB" for index, mib in busy.items())
        return warn(
            f"memory in use, no process seen: {seen}",
            on_node(node, "nvidia-smi" if facts.gpu_kind == "nvidia" else "amd-smi process"),
        )
    if not used:
        return unknown("the driver does not tell the memory in use")
    if facts.why_unknown("gpu_processes"):
        return unknown(f"the processes on the GPUs: {facts.why_unknown('gpu_processes')}")
    return ok(f"at most {max(used.values())} MiB in use")


CHECKS = (
    Check(
        name="gpu-driver",
        headline=True,
        looks_at="nvidia-smi, amd-smi or rocm-smi",
        why="ranks would find no GPU, or hang with the driver",
        warns="torch has no code for the GPUs that are there",
        each=check_gpu_driver,
    ),
    Check(
        name="gpu-count",
        looks_at="GPUs against the processes that were asked for",
        why="ranks without a GPU fail with an invalid device ordinal",
        fails="fewer GPUs than processes",
        each=check_gpu_count,
    ),
    Check(
        name="gpu-free",
        looks_at="processes and memory on the GPUs",
        why="out of memory, or two runs that slow each other",
        fails="a foreign process is on a GPU",
        warns="more than {warn_mib:g} MiB are in use",
        each=check_gpu_free,
    ),
)
