"""Reads what nvidia-smi, amd-smi and rocm-smi show of GPUs at work: clock, heat, power, reasons for slow clocks."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Optional

from orchestrator.node.smi import read_entries, read_inner, read_json, whole
from orchestrator.node.smi_health import amd_throttle, figure

Facts = Dict[str, Any]
NVIDIA_FIELDS = "index,clocks.sm,clocks.max.sm,temperature.gpu,power.draw"
COLUMNS = 6
NVIDIA_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""Bits of the mask that tell of something; idle and chosen clocks are nothing."""
AMD_REASONS = {
    "sw_power_cap": "power cap",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "software thermal",
    "hw_thermal_slowdown": "hardware thermal",
}


def parse_nvidia_samples(text: str) -> List[Facts]:
    """Read one line a GPU: index, clock, its maximum, temperature, power, mask of reasons for slow clocks."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != COLUMNS or not cells[0].isdigit():
            continue
        mask = int(cells[5], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", cells[5]) else 0
        found.append(
            {
                "index": int(cells[0]),
                "clock_mhz": whole(cells[1]),
                "clock_max_mhz": whole(cells[2]),
                "temperature_c": whole(cells[3]),
                "power_w": whole(cells[4]),
                "throttle": [name for bit, name in NVIDIA_REASONS.items() if mask & bit],
            }
        )
    return found


def parse_amd_samples(text: str) -> List[Facts]:
    """Read amd-smi metric --json; a GPU of several dies shows a clock for each.

    Raises:
        OddOutputError: it is not JSON.
    """
    found = []
    for entry in read_entries(text):
        index = whole(entry.get("gpu"))
        if index is None:
            continue
        clocks, power = read_inner(entry, "clock"), read_inner(entry, "power")
        found.append(
            {
                "index": index,
                "clock_mhz": _middle(_clocks(clocks, "clk", "cur_clk")),
                "clock_max_mhz": max(_clocks(clocks, "max_clk"), default=None),
                "temperature_c": first(read_inner(entry, "temperature"), "hotspot", "edge"),
                "power_w": first(power, "socket_power", "current_socket_power", "average_socket_power"),
                "throttle": sorted({AMD_REASONS[name] for name in amd_throttle(entry) or () if name in AMD_REASONS}),
            }
        )
    return found


def parse_rocm_samples(text: str) -> List[Facts]:
    """Read rocm-smi --showclocks --showtemp --showpower --json.

    Raises:
        OddOutputError: it is not JSON.
    """
    found: List[Facts] = []
    for name, card in read_json(text, "rocm-smi").items():
        match = re.match(r"card(\d+)$", name)
        if match is None or not isinstance(card, dict):
            continue
        clock = re.search(r"\d+", str(card.get("sclk clock speed:", "")))
        found.append(
            {
                "index": int(match.group(1)),
                "clock_mhz": int(clock.group()) if clock else None,
                "clock_max_mhz": None,
                "temperature_c": first(card, "Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)"),
                "power_w": first(
                    card, "Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)"
                ),
                "throttle": [],
            }
        )
    return sorted(found, key=lambda gpu: int(gpu["index"]))


def number(value: Any) -> Optional[int]:
    """Read a figure, with its unit or without, bare or as {"value", "unit"}; None where there is none."""
    told = figure(str(value.get("value") if isinstance(value, dict) else value))
    return None if told is None else int(told)


def first(entry: Any, *keys: str) -> Optional[int]:
    """Give the first figure that there is."""
    found = (number(read_inner(entry, key)) for key in keys) if isinstance(entry, dict) else iter(())
    return next((one for one in found if one is not None), None)


def _clocks(clocks: Any, *keys: str) -> List[int]:
    def read() -> Iterator[Optional[int]]:
        for name, clock in clocks.items() if isinstance(clocks, dict) else ():
            if str(name).startswith("gfx"):
                yield first(clock, *keys)

    # A die that sleeps shows no clock, or none to speak of.
    return [one for one in read() if one]


def _middle(values: List[int]) -> Optional[int]:
    return sorted(values)[len(values) // 2] if values else None
