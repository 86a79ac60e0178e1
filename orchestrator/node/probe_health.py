"""How well the GPUs of a node are: PCI against driver, driver against its libraries, and what the driver tells of each."""

from __future__ import annotations

import os

from orchestrator.node import processes
from orchestrator.node.atonce import do_at_once
from orchestrator.node.probe_command import (
    TIME_IS_UP,
    NoAnswerError,
    OddOutputError,
    ask_all,
    group_name,
    list_names,
    read_text,
    text_of,
)
from orchestrator.node.probe_gpus import CARDS, find_tool

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    Facts = Dict[str, Any]

PCI = "/sys/bus/pci/devices"
VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
DISPLAY, ACCELERATOR, BRIDGE = "0x03", "0x12", "0x0680"
"""Classes of PCI devices: GPUs are displays or accelerators, an NVSwitch is a bridge."""
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


def probe_health(request: Facts) -> Facts:
    """Look at the GPUs without using one."""
    del request
    devices = read_pci()
    gpus = [device for device in devices if device["kind"] == "gpu"]
    tools = {name: find_tool(name) for name in ("nvidia-smi", "amd-smi", "rocm-smi")}
    health: Facts = {"pci": gpus, "switches": sum(device["kind"] == "switch" for device in devices)}
    if not gpus and not any(tools.values()):
        return {"health": health}
    health.update(_read_nvidia(), **_read_amd(), devices=read_devices())
    if health["switches"]:
        health["fabric_manager"] = _manager_runs()
    unknown: Dict[str, str] = {}

    def read_log() -> None:
        from orchestrator.node import probe_xid  # noqa: PLC0415 - only for GPUs

        events, trouble = probe_xid.read_events()
        if trouble:
            unknown["health.events"] = trouble
        else:
            health["events"] = events

    def ask_driver() -> None:
        health["gpus"], trouble = _ask_driver(tools)
        if trouble:
            unknown["health.gpus"] = trouble

    # A driver that hangs takes its whole time: the log is read meanwhile.
    do_at_once([read_log, ask_driver])
    return {"health": health, "unknown": unknown}


def read_pci(root: str = PCI) -> List[Facts]:
    """List the GPUs and NVSwitches on the bus, and those that are on it no more."""
    found: List[Facts] = []
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return found
    for name in names:
        path = os.path.join(root, name)
        vendor = VENDORS.get(read_text(f"{path}/vendor"), "")
        kind = read_text(f"{path}/class") if vendor else ""
        switch = vendor == "nvidia" and kind.startswith(BRIDGE)
        if not vendor or not (switch or kind.startswith((DISPLAY, ACCELERATOR))):
            continue
        driver = os.path.join(path, "driver")
        found.append(
            {
                "kind": "switch" if switch else "gpu",
                "address": name,
                "vendor": vendor,
                "driver": os.path.basename(os.readlink(driver)) if os.path.islink(driver) else "",
                # What shows pictures too may be the processor's own, which no driver for computing counts.
                "display": kind.startswith("0x0300"),
                "gone": _is_gone(path),
                "ours": vendor != "nvidia" or _is_ours(name),
            }
        )
    return found


def _is_gone(path: str) -> bool:
    """A device that fell off the bus answers every read with ones."""
    if read_text(f"{path}/power/runtime_status") == "suspended":
        return False
    try:
        with open(f"{path}/config", "rb") as file:
            return file.read(4) == b"\xff\xff\xff\xff"
    except OSError:
        return False


def _is_ours(address: str) -> bool:
    """A container or a batch system may hide a GPU that the bus shows."""
    import re  # noqa: PLC0415 - dear, and only for GPUs, as in all that follows

    told = read_text(f"{CARDS}/{address}/information")
    minor = re.search(r"Device Minor:\s*(\d+)", told)
    if minor is None:
        return not os.path.isdir(CARDS)
    return os.access(f"/dev/nvidia{minor.group(1)}", os.R_OK | os.W_OK)


def _read_nvidia() -> Facts:
    version = read_text("/proc/driver/nvidia/version")
    return {
        "module_version": parse_module_version(version),
        "module_open": "Open Kernel Module" in version if version else None,
        "library_version": find_library_version(LIBRARY_FOLDERS),
        "compat": has_compat(),
        "maker": bool(find_tool("nvidia-modprobe")),
    }


def has_compat(root: str = "/usr/local") -> bool:
    """Tell whether a CUDA brings a driver's library of its own: cuda*/compat/libcuda.so.1, or in its folder lib*."""
    folders = [f"{root}/{name}/compat" for name in list_names(root, "cuda")]
    folders += [f"{folder}/{name}" for folder in folders for name in list_names(folder, "lib")]
    return any(os.path.lexists(f"{folder}/libcuda.so.1") for folder in folders)


def parse_module_version(text: str) -> str:
    """Read /proc/driver/nvidia/version: the version of the module that is loaded."""
    import re  # noqa: PLC0415 - as above

    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else ""


def find_library_version(folders: Tuple[str, ...]) -> str:
    """Find the version of the driver's library that programs would load."""
    import re  # noqa: PLC0415 - as above

    for folder in folders:
        for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
            match = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", os.path.realpath(os.path.join(folder, name)))
            if match is not None:
                return match.group(1)
    return ""


def _read_amd() -> Facts:
    import re  # noqa: PLC0415 - as above

    top = "/sys/class/kfd/kfd/topology/nodes"
    nodes = [path for path in (f"{top}/{name}/properties" for name in list_names(top)) if os.path.lexists(path)]
    return {
        "amdgpu": os.path.isdir("/sys/module/amdgpu"),
        "kfd_gpus": sum(bool(re.search(r"^simd_count [1-9]", read_text(path), re.MULTILINE)) for path in nodes)
        if nodes
        else None,
    }


def read_devices(root: str = "/dev") -> List[Facts]:
    """List the device nodes that a program needs, and whether this user may use them."""
    paths = [f"{root}/nvidiactl", f"{root}/nvidia-uvm", f"{root}/kfd", *_cards(root)]
    # A graphics chip of the board has such a node too.
    paths += [
        f"{root}/dri/{name}"
        for name in list_names(f"{root}/dri", "renderD")
        if read_text(f"/sys/class/drm/{name}/device/vendor") == "0x1002"
    ]
    return [
        {"path": path, "group": group_name(path), "usable": os.access(path, os.R_OK | os.W_OK)}
        for path in sorted(paths)
        if os.path.exists(path)
    ]


def _cards(root: str) -> List[str]:
    return [f"{root}/{name}" for name in list_names(root, "nvidia") if name[6:7].isdigit()]


def _manager_runs() -> Any:
    """Look for the fabric manager; None where the machine's own processes are not to be seen."""
    seen_init = False
    for pid in processes.all_pids():
        name = read_text(f"/proc/{pid}/comm")
        if name.startswith("nv-fabricmanage"):
            return True
        seen_init = seen_init or name == "systemd"
    return False if seen_init else None


def _ask_driver(tools: Dict[str, str]) -> Tuple[List[Facts], str]:
    """Ask the first tool that answers for the health of each GPU."""
    troubles: List[str] = []
    for name, query in (("nvidia-smi", _nvidia), ("amd-smi", _amd_smi), ("rocm-smi", _rocm_smi)):
        if not tools[name]:
            continue
        try:
            found = query(tools[name])
        except (NoAnswerError, OddOutputError) as error:
            troubles.append(str(error))
            if TIME_IS_UP in str(error):
                break
            continue
        if found:
            return found, ""
    return [], "; ".join(troubles)


def _nvidia(tool: str) -> List[Facts]:
    from orchestrator.node import smi_health  # noqa: PLC0415 - only for GPUs

    answers = ask_all(("gpus", [tool, "-q", "-x"]), ("links", [tool, "nvlink", "-s"]))
    text, trouble = answers["gpus"]
    # With one card gone it may end badly and tell of the others all the same.
    if trouble and "<gpu " not in text:
        raise NoAnswerError(trouble)
    gpus = smi_health.parse_nvidia_health(text)
    links = smi_health.parse_nvlinks(answers["links"][0])
    return [{**gpu, **links.get(gpu["uuid"], {})} for gpu in gpus]


def _amd_smi(tool: str) -> List[Facts]:
    from orchestrator.node import smi_health  # noqa: PLC0415 - only for GPUs

    answers = ask_all(
        ("list", [tool, "list", "--json"]),
        ("static", [tool, "static", "--limit", "--vbios", "--json"]),
        ("metric", [tool, "metric", "--json"]),
        ("pages", [tool, "bad-pages", "--json"]),
    )
    texts = (answers[name][0] for name in ("static", "metric", "pages"))
    return smi_health.parse_amd_health(text_of(answers["list"]), *texts)


def _rocm_smi(tool: str) -> List[Facts]:
    from orchestrator.node import smi_health  # noqa: PLC0415 - only for GPUs

    words = ["--showuniqueid", "--showbus", "--showtemp", "--showmaxpower", "--json"]
    answers = ask_all(("gpus", [tool, *words]))
    return smi_health.parse_rocm_health(text_of(answers["gpus"]))
