"""Asks how busy the GPUs are and what power they draw: one that waits in a kernel looks fully used and stays cool."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from orchestrator.node import smi
from orchestrator.node.gpu_use import key_of
from orchestrator.node.probe_command import ask, ask_all, text_of
from orchestrator.node.probe_gpus import ask_tools
from orchestrator.node.smi_gauges import first, number

Facts = Dict[str, Any]
LIMIT_S = 4.0
NVIDIA_FIELDS = "index,uuid,utilization.gpu,power.draw,power.limit"
COLUMNS = 5


def read_pulse(used: Optional[Mapping[str, Any]]) -> Tuple[List[Facts], str]:
    """Ask the first tool that answers for the GPUs of a run, for all where it is not known which; or say why not."""
    if used == {}:
        return [], ""
    troubles: List[str] = []
    for _, found in ask_tools(QUERIES, troubles):
        ours = [gpu for gpu in found if used and key_of(gpu) in used]
        return [{name: value for name, value in gpu.items() if name != "uuid"} for gpu in ours or found], ""
    return [], "; ".join(troubles) or "there is no nvidia-smi, amd-smi or rocm-smi"


def parse_nvidia_pulse(text: str) -> List[Facts]:
    """Read one line a GPU: index, UUID, share of the time that it works, power and its limit."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == COLUMNS and cells[0].isdigit():
            found.append(_pulse(int(cells[0]), cells[1], *map(smi.whole, cells[2:])))
    return found


def parse_amd_pulse(metric: str, static: str) -> List[Facts]:
    """Read amd-smi metric --usage --power and static --limit, each --json.

    Raises:
        OddOutputError: the first is not JSON.
    """
    limits: Dict[Any, Optional[int]] = {}
    try:
        for entry in smi.read_entries(static):
            places = (("limit", "power_cap"), ("limit", "ppt0", "power_cap"))
            caps = (number(smi.read_inner(entry, *place)) for place in places)
            limits[smi.whole(entry.get("gpu"))] = next((cap for cap in caps if cap), None)
    except smi.OddOutputError:
        limits = {}
    found = []
    for entry in smi.read_entries(metric):
        index = smi.whole(entry.get("gpu"))
        if index is not None:
            names = ("socket_power", "current_socket_power", "average_socket_power")
            power = first(smi.read_inner(entry, "power"), *names)
            busy = number(smi.read_inner(entry, "usage", "gfx_activity"))
            found.append(_pulse(index, "", busy, power, limits.get(index)))
    return found


def parse_rocm_pulse(text: str) -> List[Facts]:
    """Read rocm-smi --showuse --showpower --showmaxpower --json.

    Raises:
        OddOutputError: it is not JSON.
    """
    found = []
    for name, card in smi.read_json(text, "rocm-smi").items():
        match = re.match(r"card(\d+)$", name)
        if match is None or not isinstance(card, dict):
            continue
        names = ("Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)")
        busy, limit = number(card.get("GPU use (%)")), number(card.get("Max Graphics Package Power (W)"))
        found.append(_pulse(int(match.group(1)), "", busy, first(card, *names), limit))
    return sorted(found, key=lambda gpu: int(gpu["index"]))


def _pulse(index: int, uuid: str, busy: Optional[int], power: Optional[int], limit: Optional[int]) -> Facts:
    return {"index": index, "uuid": uuid, "util_percent": busy, "power_w": power, "power_limit_w": limit}


def _ask_nvidia(tool: str) -> List[Facts]:
    return parse_nvidia_pulse(ask([tool, f"--query-gpu={NVIDIA_FIELDS}", "--format=csv,noheader,nounits"], LIMIT_S))


def _ask_amd(tool: str) -> List[Facts]:
    answers = ask_all(
        ("metric", [tool, "metric", "--usage", "--power", "--json"]), ("static", [tool, "static", "--limit", "--json"])
    )
    return parse_amd_pulse(text_of(answers["metric"]), answers["static"][0])


def _ask_rocm(tool: str) -> List[Facts]:
    return parse_rocm_pulse(ask([tool, "--showuse", "--showpower", "--showmaxpower", "--json"], LIMIT_S))


QUERIES: Tuple[Tuple[str, Callable[[str], List[Facts]]], ...] = (
    ("nvidia-smi", _ask_nvidia),
    ("amd-smi", _ask_amd),
    ("rocm-smi", _ask_rocm),
)
