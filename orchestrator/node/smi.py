"""Reads what nvidia-smi, amd-smi and rocm-smi print; text in, plain values out."""

from __future__ import annotations

import json
import re

from orchestrator.node import probe_command

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    Facts = Dict[str, Any]
OddOutputError = probe_command.OddOutputError
MIB = 1 << 20
UNITS = {"B": 1 / MIB, "KB": 1 / 1024, "MB": 1.0, "MIB": 1.0, "GB": 1024.0, "GIB": 1024.0}


def whole(text: Any) -> Optional[int]:
    """Give a whole number; None for "[N/A]", "[Not Supported]", "[Insufficient Permissions]" and the like."""
    try:
        return int(float(str(text)))
    except ValueError:
        return None


def _rows(text: str, columns: int) -> List[List[str]]:
    rows = [[cell.strip() for cell in line.split(",", columns - 1)] for line in text.splitlines() if line.strip()]
    return [row for row in rows if len(row) == columns]


def parse_nvidia_gpus(text: str) -> Tuple[List[Facts], str]:
    """Read --query-gpu=index,uuid,name,memory.total,memory.used,driver_version; GPUs and driver."""
    gpus: List[Facts] = []
    driver = ""
    for index, uuid, name, total, used, version in _rows(text, 6):
        # A card that is gone has "[GPU is lost]" or "[Unknown Error]" in every column.
        if not index.isdigit() or uuid.startswith("["):
            continue
        driver = driver or version
        gpus.append(
            {
                "index": int(index),
                "uuid": uuid,
                "model": name,
                "memory_total_mib": whole(total),
                "memory_used_mib": whole(used),
            }
        )
    if not gpus and text.strip() and "No devices were found" not in text:
        raise OddOutputError(f"nvidia-smi said: {text.strip().splitlines()[0][:200]}")
    return gpus, driver


def has_rows(text: str) -> bool:
    """Tell whether some card answered."""
    return re.search(r"^\s*\d+\s*,\s*(GPU|MIG)-", text, re.MULTILINE) is not None


def find_lost(text: str) -> str:
    """Give the line that tells of a card that answers no more; empty when all do."""
    pattern = re.compile(
        r"unable to determine the device handle|\[(gpu is lost|unknown error|gpu requires reset)\]", re.IGNORECASE
    )
    return next((line.strip()[:200] for line in text.splitlines() if pattern.search(line)), "")


def parse_nvidia_apps(text: str) -> List[Facts]:
    """Read --query-compute-apps=pid,gpu_uuid,used_memory,process_name."""
    return [
        {"pid": int(pid), "uuid": uuid, "used_mib": whole(used), "command": name}
        for pid, uuid, used, name in _rows(text, 4)
        if pid.isdigit()
    ]


def read_json(text: str, tool: str) -> Any:
    """Read the JSON in an output that may begin with warnings."""
    starts = [place for place in (text.find("{"), text.find("[")) if place >= 0]
    try:
        return json.loads(text[min(starts) :] if starts else text)
    except ValueError:
        said = text.strip().splitlines()
        raise OddOutputError(f"{tool} gave no JSON" + (f": {said[0][:200]}" if said else "")) from None


def read_entries(text: str) -> List[Facts]:
    """Read the list of GPUs in an output of amd-smi."""
    value = read_json(text, "amd-smi")
    if isinstance(value, dict):
        # Newer versions put the list under a key.
        value = value.get("gpu_data", value.get("process_data", []))
    return [entry for entry in value if isinstance(entry, dict)]


def _of_gpu(text: str) -> Dict[int, Facts]:
    try:
        return {int(entry["gpu"]): entry for entry in read_entries(text) if "gpu" in entry}
    except OddOutputError:
        return {}


def size_mib(value: Any) -> Optional[int]:
    """Give the MiB of {"value", "unit"}, as amd-smi writes a size."""
    if isinstance(value, dict) and whole(value.get("value")) is not None:
        return int(float(value["value"]) * UNITS.get(str(value.get("unit", "MB")).upper(), 1.0))
    return None


def read_inner(entry: Facts, *keys: str) -> Any:
    """Give a value deep in an object; None where the way to it ends."""
    value: Any = entry
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def parse_amd_gpus(listed: str, static: str, metric: str) -> Tuple[List[Facts], str]:
    """Read amd-smi list, static --asic --vram --driver and metric --mem-usage; GPUs and driver."""
    statics, metrics = _of_gpu(static), _of_gpu(metric)
    gpus: List[Facts] = []
    driver = ""
    for entry in read_entries(listed):
        index = whole(entry.get("gpu"))
        if index is None:
            continue
        more, use = statics.get(index, {}), metrics.get(index, {})
        driver = driver or str(
            read_inner(more, "driver", "version") or read_inner(more, "driver", "driver_version") or ""
        )
        gpus.append(
            {
                "index": index,
                "uuid": str(entry.get("uuid", "")),
                "model": str(read_inner(more, "asic", "market_name") or ""),
                "memory_total_mib": size_mib(read_inner(more, "vram", "size"))
                or size_mib(read_inner(use, "mem_usage", "total_vram")),
                "memory_used_mib": size_mib(read_inner(use, "mem_usage", "used_vram")),
            }
        )
    return gpus, driver


def parse_amd_apps(text: str) -> List[Facts]:
    """Read amd-smi process."""
    apps: List[Facts] = []
    for entry in read_entries(text):
        for item in entry.get("process_list", []):
            process = item.get("process_info", item) if isinstance(item, dict) else {}
            pid = whole(process.get("pid")) if isinstance(process, dict) else None
            if pid is not None:
                used = size_mib(read_inner(process, "memory_usage", "vram_mem"))
                apps.append(
                    {
                        "pid": pid,
                        "uuid": str(entry.get("gpu", "")),
                        "used_mib": used,
                        "command": process.get("name", ""),
                    }
                )
    return apps


def parse_rocm_gpus(text: str) -> Tuple[List[Facts], str]:
    """Read rocm-smi --showuniqueid --showproductname --showmeminfo vram --showdriverversion --json."""
    value = read_json(text, "rocm-smi")
    gpus: List[Facts] = []
    for name, card in value.items():
        match = re.match(r"card(\d+)$", name)
        if match is None:
            continue
        total, used = whole(card.get("VRAM Total Memory (B)")), whole(card.get("VRAM Total Used Memory (B)"))
        gpus.append(
            {
                "index": int(match.group(1)),
                "uuid": str(card.get("Unique ID", "")),
                "model": str(card.get("Card Series") or card.get("Card series") or card.get("Card Model") or ""),
                "memory_total_mib": None if total is None else total // MIB,
                "memory_used_mib": None if used is None else used // MIB,
            }
        )
    system = value.get("system", {})
    return sorted(gpus, key=lambda gpu: int(gpu["index"])), str(system.get("Driver version", ""))


def parse_rocm_apps(text: str) -> List[Facts]:
    """Read rocm-smi --showpids --json: "PID123": "name, GPU count, VRAM bytes, ..."."""
    if not text.strip() or "No JSON data" in text:
        return []
    apps: List[Facts] = []
    for name, words in read_json(text, "rocm-smi").get("system", {}).items():
        match = re.match(r"PID(\d+)$", name)
        name_of, *cells = [cell.strip() for cell in str(words).split(",")]
        if match is not None:
            used = whole(cells[1]) if len(cells) > 1 else None
            apps.append(
                {
                    "pid": int(match.group(1)),
                    "uuid": "",
                    "used_mib": None if used is None else used // MIB,
                    "command": name_of,
                }
            )
    return apps
