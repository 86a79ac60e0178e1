"""What the figures depend on: the cards and how the nodes share them, the driver, the versions."""

from __future__ import annotations

import json
import os
import platform
import tomllib
from pathlib import Path
from typing import Any

import cluster  # found by the path that benchmark sets

from . import PROJECT
from .nodes import Bed

ASK_TORCH = (
    "import json, torch; n = torch.cuda.nccl.version() if torch.cuda.is_available() else (); "
    "print(json.dumps([torch.__version__, torch.version.cuda or '', '.'.join(map(str, n))]))"
)


SMI_S = 30


def ask_smi(fields: str) -> list[list[str]]:
    """Ask for fields of every GPU; nothing where there is none, or the driver does not answer."""
    try:
        return cluster.ask_smi(fields, SMI_S)
    except cluster.ClusterError:
        return []


def read_memory() -> dict[str, int]:
    """MiB in use on each GPU, by its number."""
    return {index: int(used) for index, used in ask_smi("index,memory.used")}


def read_machine(bed: Bed) -> dict[str, Any]:
    """The cards, the processors, and what each node has of them."""
    gpus = ask_smi("name,memory.total,driver_version")
    kib = int(next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line).split()[1])
    shares = [bed.say(node, 'echo "${CUDA_VISIBLE_DEVICES-}"').strip() for node in bed.nodes]
    return {
        "gpus": [name for name, *_ in gpus],
        "gpu_memory_mib": [int(total) for _, total, _ in gpus],
        "driver": gpus[0][2] if gpus else "",
        "nodes": shares,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(kib / 1024**2),
        "kernel": platform.release(),
    }


def read_versions(bed: Bed) -> dict[str, str]:
    """Every program that takes part, by its own word."""
    python = bed.nodes[0].python or "python3"
    torch, cuda, nccl = json.loads(bed.say(bed.nodes[0], f'{python} -c "{ASK_TORCH}"'))
    own = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    return {"aorta-launch": own, "Python": platform.python_version(), "torch": torch, "CUDA": cuda, "NCCL": nccl}
