"""Checks that bus, driver, libraries and torch agree on the GPUs, and that this session may use them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from orchestrator.checks.across import compare
from orchestrator.checks.check import Check
from orchestrator.checks.gpu_view import NO_TIME, Gpus, judge_gpus, name_gpus, reboot, why_unused
from orchestrator.checks.hardware import count_gpus, wanted_processes
from orchestrator.checks.pip import torch_line
from orchestrator.checks.remedies import install, install_driver, on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import THRESHOLDS, threshold
from orchestrator.facts import Facts
from orchestrator.facts.health import PciDevice
from orchestrator.settings import Settings
from orchestrator.values import Node

LOST = re.compile(r"unable to determine the device handle|gpu is lost|fallen off the bus", re.IGNORECASE)
MISMATCH = "Driver/library version mismatch"
DENIED = re.compile(r"NVML: (Unknown Error|Insufficient Permissions)")

FIRST_CUDA: Mapping[str, str] = {"Ampere": "11.0", "Ada Lovelace": "11.8", "Hopper": "11.8", "Blackwell": "12.8"}
"""The CUDA that first made code for a generation of GPUs."""
NO_CUDA: Mapping[str, str] = {"Kepler": "12.0", "Maxwell": "13.0", "Pascal": "13.0", "Volta": "13.0"}
"""The CUDA from which on it makes none any more."""


def check_gpu_seen(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The driver shows every GPU that is on the bus."""
    unused = why_unused(facts, settings)
    if unused is not None:
        return unused
    trouble = facts.why_unknown("gpus")
    lost = next((text for text in (trouble, facts.why_unknown("gpus.lost")) if LOST.search(text)), "")
    bus = facts.health.pci or ()
    gone = [device.address for device in bus if device.gone]
    if lost or gone:
        return fail(f"a GPU is lost: {lost or 'no answer on the bus from ' + ', '.join(gone)}", reboot(node))
    if MISMATCH in trouble or DENIED.search(trouble):
        # Another check says what that means.
        return unknown(f"the driver does not tell: {trouble}")
    if NO_TIME in trouble:
        return unknown(trouble, on_node(node, "ps -eo pid,stat,wchan:32,args | grep ' D'"))
    held = [device for device in bus if _counts(device)]
    seen = len(facts.gpus) + facts.hidden_gpus
    if len(held) > seen or (facts.health.kfd_gpus is not None and len(_amd(held)) > facts.health.kfd_gpus):
        seen = min(seen, facts.health.kfd_gpus) if _amd(held) and facts.health.kfd_gpus is not None else seen
        return fail(
            f"{count_gpus(len(held))} on the bus, the driver shows {seen}{trouble and ': '}{trouble}", reboot(node)
        )
    return _judge_undriven(node, facts, bus, seen)


def _counts(device: PciDevice) -> bool:
    if device.vendor == "amd":
        return device.driver == "amdgpu" and not device.display
    return device.driver == "nvidia" and device.ours


def _amd(devices: Sequence[PciDevice]) -> list[PciDevice]:
    return [device for device in devices if device.vendor == "amd"]


def _judge_undriven(node: Node, facts: Facts, bus: Sequence[PciDevice], seen: int) -> Seen:
    """Judge the GPUs that no driver for computing holds."""
    free = [device for device in bus if device.driver in ("", "nouveau") and not device.display]
    if free and not seen:
        kind = free[0].vendor
        load = "sudo modprobe amdgpu" if kind == "amd" else "sudo modprobe nvidia"
        held = f"held by {free[0].driver}" if free[0].driver else "without a driver"
        remedy = load if free[0].driver == "" else f"{install_driver(facts)} && sudo reboot"
        return fail(f"{count_gpus(len(free))} on the bus, {held}", on_node(node, remedy, terminal=True))
    if seen:
        return ok(f"{seen} on the bus and by the driver" if bus else f"{seen} by the driver")
    return skip("no GPU")


def check_gpu_module(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The kernel module and the driver's library are of one version."""
    unused = why_unused(facts, settings)
    module, library = facts.health.module_version, facts.health.library_version
    trouble = facts.why_unknown("gpus")
    if unused is not None:
        return unused
    told = f"kernel module {module or '?'}, library {library or '?'}"
    if MISMATCH in trouble:
        return fail(f"{told}: {trouble}", reboot(node))
    if not module:
        return skip("no NVIDIA module")
    if module == library or not library:
        return ok(told if library else f"kernel module {module}")
    # A second library in an image does no harm as long as the driver's tool takes the right one.
    return warn(told, reboot(node)) if facts.gpus else fail(told, reboot(node))


def check_gpu_runtime(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Torch's CUDA or ROCm fits the driver and the generation of the GPUs."""
    unused = why_unused(facts, settings)
    if unused is not None:
        return unused
    if facts.torch_version is None or not facts.gpu_kind:
        return skip("no GPU or no torch to judge")
    release = facts.torch_version.partition("+")[0]
    if facts.gpu_kind == "nvidia" and not facts.torch_cuda:
        return fail(
            f"torch {facts.torch_version} is for AMD, the GPUs are of NVIDIA",
            torch_line(node, facts, f"{release}+{_wheel(facts, settings)}"),
        )
    if facts.gpu_kind == "amd":
        return _judge_rocm(node, facts)
    cuda = str(facts.torch_cuda)
    least = _least_driver(cuda, settings)
    if least and facts.driver_version and _numbers(facts.driver_version) < _numbers(least):
        detail = f"CUDA {cuda} of torch needs driver {least}, here is {facts.driver_version}"
        remedy = torch_line(node, facts, f"{release}+{_wheel(facts, settings)}")
        return warn(f"{detail}, and cuda-compat", remedy) if facts.health.compat else fail(detail, remedy)
    return _judge_generation(node, facts, cuda)


def _judge_rocm(node: Node, facts: Facts) -> Seen:
    if not facts.torch_hip:
        return fail(
            f"torch {facts.torch_version} is for NVIDIA, the GPUs are of AMD",
            torch_line(node, facts, "+rocm6.4"),
        )
    if facts.health.amdgpu is False:
        return fail("the module amdgpu is not loaded", on_node(node, "sudo modprobe amdgpu", terminal=True))
    return ok(f"ROCm {facts.torch_hip}, amdgpu {facts.driver_version or 'loaded'}")


def _judge_generation(node: Node, facts: Facts, cuda: str) -> Seen:
    for gpu in facts.health.gpus:
        first, last = FIRST_CUDA.get(gpu.architecture), NO_CUDA.get(gpu.architecture)
        wheel = ""
        if first and _numbers(cuda) < _numbers(first):
            wheel = "cu128" if _numbers(first) > (12,) else "cu126"
        elif last and _numbers(cuda) >= _numbers(last):
            wheel = "cu126" if last.startswith("13") else "cu118"
        if wheel:
            return fail(
                f"CUDA {cuda} of torch has no code for {gpu.model or name_gpus([gpu])} ({gpu.architecture})",
                torch_line(node, facts, f"+{wheel}"),
            )
    return ok(f"CUDA {cuda}, driver {facts.driver_version or 'unknown'}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _least_driver(cuda: str, settings: Settings) -> str:
    name = f"cuda_{cuda.partition('.')[0]}"
    # 525.60 is a version and not a fraction: 525.105 is newer.
    return f"{threshold(settings, 'gpu-runtime', name):.2f}" if name in THRESHOLDS["gpu-runtime"] else ""


def _wheel(facts: Facts, settings: Settings) -> str:
    driver = _numbers(facts.driver_version)
    return "cu126" if not driver or driver >= _numbers(_least_driver("12", settings)) else "cu118"


def compare_driver(nodes: Sequence[Node], facts: Sequence[Facts], settings: Settings) -> list[Seen]:
    """The driver is the same version everywhere."""
    unused = [why_unused(fact, settings) for fact in facts]
    versions = [fact.driver_version or None if seen is None else None for fact, seen in zip(facts, unused, strict=True)]
    return [
        seen or judged
        for seen, judged in zip(
            unused,
            compare(
                versions, nodes, "driver", lambda rank, text, most: warn(text, _renew(nodes[rank], facts[rank], most))
            ),
            strict=True,
        )
    ]


def _renew(node: Node, facts: Facts, version: str) -> str:
    command = install_driver(facts, version) if facts.gpu_kind == "nvidia" else install(facts, "amdgpu-dkms")
    return on_node(node, f"{command} && sudo reboot", terminal=True)


def check_gpu_devices(node: Node, facts: Facts, settings: Settings) -> Seen:
    """This user may use the device nodes of the GPUs."""
    unused = why_unused(facts, settings)
    if unused is not None:
        return unused
    denied = DENIED.search(facts.why_unknown("gpus"))
    if denied:
        return fail(
            f"the driver refuses this session: {denied.group()}", "start the container anew: docker restart CONTAINER"
        )
    devices = [device for device in facts.health.devices or () if _vendor(device.path) in _wanted_vendors(facts)]
    if not devices:
        why = facts.why_unknown("health")
        return unknown(why) if why else skip("no device node")
    locked = [device for device in devices if not device.usable]
    open_ones = {re.sub(r"\d+$", "", device.path) for device in devices if device.usable}
    # Of several GPUs a batch system may leave only some to a session.
    needed = [device for device in locked if re.sub(r"\d+$", "", device.path) not in open_ones]
    if needed:
        groups = sorted({device.group for device in needed} - {"", "root"}) or ["render", "video"]
        words = f"sudo usermod -aG {','.join(groups)} {facts.user}"
        paths = ", ".join(device.path for device in needed)
        return fail(f"{facts.user} may not use {paths}", on_node(node, words, terminal=True))
    names = {device.path.rpartition("/")[2] for device in devices}
    if facts.gpu_kind == "nvidia" and "nvidia-uvm" not in names and not facts.health.maker:
        return warn("/dev/nvidia-uvm is missing", on_node(node, "sudo modprobe nvidia-uvm", terminal=True))
    return ok(f"{len(devices) - len(locked)} device nodes")


def _vendor(path: str) -> str:
    return "nvidia" if path.startswith("/dev/nvidia") else "amd"


def _wanted_vendors(facts: Facts) -> set[str]:
    """Name the makers of GPUs that matter here: the graphics of a processor do not, unless torch is for them."""
    wanted = {facts.gpu_kind} | {device.vendor for device in facts.health.pci or () if not device.display}
    return wanted | ({"nvidia"} if facts.torch_cuda else set()) | ({"amd"} if facts.torch_hip else set())


def check_gpu_mode(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Programs may use the GPUs as the plan does."""

    def judge(gpus: Gpus) -> Seen:
        named = [*node.gpus, *(facts.visible_devices or {}).values()]
        sliced = [gpu for gpu in gpus if gpu.mig]
        if sliced and not any("MIG-" in word for word in named):
            numbers = ",".join(str(gpu.index) for gpu in sliced)
            remedy = f"sudo nvidia-smi -i {numbers} -mig 0"
            return fail(f"{name_gpus(sliced)}: in MIG slices, none of them named", on_node(node, remedy, terminal=True))
        closed = [gpu for gpu in gpus if gpu.compute_mode.lower().startswith("prohibited")]
        default = on_node(node, "sudo nvidia-smi -c DEFAULT", terminal=True)
        if closed:
            return fail(f"{name_gpus(closed)}: compute mode {closed[0].compute_mode}", default)
        single = [gpu for gpu in gpus if gpu.compute_mode.lower().startswith("exclusive")]
        ranks = wanted_processes(node, facts, settings) or len(gpus)
        if single and ranks > len(gpus):
            return fail(f"{name_gpus(single)}: compute mode {single[0].compute_mode}, but {ranks} ranks", default)
        modes = sorted({gpu.compute_mode for gpu in gpus if gpu.compute_mode})
        return ok(f"compute mode {', '.join(modes)}") if modes else skip("not a mode of this driver")

    return judge_gpus(node, facts, settings, judge)


CHECKS: tuple[Check, ...] = (
    Check(
        name="gpu-seen",
        looks_at="GPUs on the PCI bus against those that the driver shows",
        why="CUDA fails on all GPUs once one fell off the bus",
        fails="the driver shows fewer, or no driver holds them",
        each=check_gpu_seen,
    ),
    Check(
        name="gpu-module",
        looks_at="NVIDIA's kernel module and library",
        why="no program can use a GPU: driver/library version mismatch",
        fails="they differ, and the driver does not answer",
        warns="they differ, and the driver answers",
        each=check_gpu_module,
    ),
    Check(
        name="gpu-runtime",
        looks_at="torch's CUDA or ROCm, the driver, and the generation of the GPUs",
        why="torch would find no GPU, or no code for it",
        fails="CUDA 11 with a driver below {cuda_11:.2f}, 12 below {cuda_12:.2f}, 13 below {cuda_13:.2f}; torch for GPUs "
        "of another maker or generation",
        warns="an older driver where cuda-compat is installed",
        each=check_gpu_runtime,
    ),
    Check(
        name="driver-equal",
        looks_at="version of the GPU driver",
        why="libraries may choose different ways on different nodes",
        warns="a node differs from most",
        across=compare_driver,
    ),
    Check(
        name="gpu-devices",
        looks_at="/dev/nvidia*, /dev/kfd and /dev/dri as this user",
        why="torch would find no GPU",
        fails="this user may not use them",
        warns="/dev/nvidia-uvm is missing and nothing would make it",
        each=check_gpu_devices,
    ),
    Check(
        name="gpu-mode",
        looks_at="compute mode and MIG",
        why="ranks find no GPU, or are refused",
        fails="prohibited; exclusive with several ranks a GPU; MIG slices that nobody asked for",
        each=check_gpu_mode,
    ),
)
