"""The GPUs of a node by the driver's own tools: nvidia-smi, else amd-smi, else rocm-smi; none is a valid answer too."""

from __future__ import annotations

import os

from orchestrator.node import processes
from orchestrator.node.probe_command import (
    TIME_IS_UP,
    NoAnswerError,
    OddOutputError,
    ask_all,
    find_program,
    list_names,
    owner_of,
    text_of,
)

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, Iterator, List, Tuple, TypeVar

    Facts = Dict[str, Any]
    Answer = TypeVar("Answer")

FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/opt/rocm/bin", "/usr/lib/wsl/lib")
CARDS = "/proc/driver/nvidia/gpus"
VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def probe_gpus(request: Facts) -> Facts:
    """List the GPUs, what they hold, and whose processes are on them."""
    del request
    facts: Facts = {
        "gpu_kind": "",
        "gpus": [],
        "gpu_processes": [],
        "driver_version": "",
        # The tools show every GPU; CUDA and HIP obey these.
        "visible_devices": {name: os.environ[name] for name in VISIBILITY if name in os.environ},
    }
    troubles: List[str] = []
    queries = (("nvidia-smi", _nvidia), ("amd-smi", _amd_smi), ("rocm-smi", _rocm_smi))
    for name, found in ask_tools(queries, troubles):
        if found["gpus"]:
            facts.update(found, gpu_kind="nvidia" if name == "nvidia-smi" else "amd")
            break
    if not facts["gpus"]:
        silent = _silent_devices()
        reason = "; ".join(troubles) or (silent and f"{silent} is there, but no tool that answers for it")
        if reason:
            facts["unknown"] = {"gpus": reason}
    for process in facts["gpu_processes"]:
        process["owner"] = owner_of(process["pid"])
        process["command"] = processes.command_of(process["pid"]) or process["command"]
    return facts


def ask_tools(
    queries: Iterable[Tuple[str, Callable[[str], Answer]]], troubles: List[str]
) -> Iterator[Tuple[str, Answer]]:
    """Give the name and the answer of each tool that is there and answers; of the others their trouble is noted."""
    for name, query in queries:
        tool = find_tool(name)
        if not tool:
            continue
        try:
            found = query(tool)
        except (NoAnswerError, OddOutputError) as error:
            troubles.append(str(error))
            # There is no time for another tool.
            if TIME_IS_UP in str(error):
                break
            continue
        yield name, found


def find_tool(name: str) -> str:
    """Find a tool on the PATH or where the drivers' packages put it."""
    return find_program(name) or find_program(name, os.pathsep.join(FOLDERS))


def _silent_devices() -> str:
    """Name a device node that tells of a GPU although no tool does."""
    paths = [path for path in ("/dev/nvidia0", "/dev/kfd") if os.path.exists(path)]
    paths += [f"{CARDS}/{name}" for name in list_names(CARDS)]
    return next(iter(paths), "")


def _optional(answer: Tuple[str, str], parse: Callable[[str], List[Facts]]) -> Tuple[List[Facts], str]:
    """Parse an answer that the GPUs' list can do without."""
    try:
        return parse(text_of(answer)), ""
    except (NoAnswerError, OddOutputError) as error:
        return [], str(error)


def _nvidia(tool: str) -> Facts:
    from orchestrator.node import smi  # noqa: PLC0415 - most of what a node without GPUs has no use for

    shape = "--format=csv,noheader,nounits"
    answers = ask_all(
        ("gpus", [tool, "--query-gpu=index,uuid,name,memory.total,memory.used,driver_version", shape]),
        ("apps", [tool, "--query-compute-apps=pid,gpu_uuid,used_memory,process_name", shape]),
    )
    text, failed = answers["gpus"]
    # With one card gone it tells of the others, and ends well or badly.
    gpus, driver = smi.parse_nvidia_gpus(text if smi.has_rows(text) else text_of(answers["gpus"]))
    apps, trouble = _optional(answers["apps"], smi.parse_nvidia_apps)
    found = _found(gpus, apps, driver, trouble)
    lost = failed or smi.find_lost(text)
    if lost:
        found.setdefault("unknown", {})["gpus.lost"] = lost
    return found


def _amd_smi(tool: str) -> Facts:
    from orchestrator.node import smi  # noqa: PLC0415 - as above

    answers = ask_all(
        ("list", [tool, "list", "--json"]),
        ("static", [tool, "static", "--asic", "--vram", "--driver", "--json"]),
        ("metric", [tool, "metric", "--mem-usage", "--json"]),
        ("process", [tool, "process", "--json"]),
    )
    gpus, driver = smi.parse_amd_gpus(text_of(answers["list"]), answers["static"][0], answers["metric"][0])
    apps, trouble = _optional(answers["process"], smi.parse_amd_apps)
    return _found(gpus, apps, driver, trouble)


def _rocm_smi(tool: str) -> Facts:
    from orchestrator.node import smi  # noqa: PLC0415 - as above

    words = ["--showuniqueid", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json"]
    answers = ask_all(("gpus", [tool, *words]), ("apps", [tool, "--showpids", "--json"]))
    gpus, driver = smi.parse_rocm_gpus(text_of(answers["gpus"]))
    apps, trouble = _optional(answers["apps"], smi.parse_rocm_apps)
    return _found(gpus, apps, driver, trouble)


def _found(gpus: List[Facts], apps: List[Facts], driver: str, trouble: str) -> Facts:
    found: Facts = {"gpus": gpus, "gpu_processes": apps, "driver_version": driver}
    if trouble:
        found["unknown"] = {"gpu_processes": trouble}
    return found
