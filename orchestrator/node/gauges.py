"""Watches this node while a load runs: clocks, heat and throttling of the GPUs; what the processors do, and for whom.

request: {"every_s": S, "limit_s": S}. Samples until an order comes, or the orders end, or the limit has passed; then answers {"gauges": {...}}.
"""

from __future__ import annotations

import os
import select
import time
from typing import Any, Dict, List, Optional

from orchestrator.node import cgroups, processes, smi
from orchestrator.node.probe_command import NoAnswerError, ask, owner_of, read_text
from orchestrator.node.probe_gpus import find_tool
from orchestrator.node.wire import Wire

Facts = Dict[str, Any]
FIELDS = "index,clocks.sm,clocks.max.sm,temperature.gpu,power.draw"
COLUMNS = 6
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The new name and the one before driver 535."""
THROTTLES = {0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
"""Bits of the mask that tell of trouble; idle, power cap and application clocks are none."""
TICKS = os.sysconf("SC_CLK_TCK")
BUSY_CORES = 0.2
"""A foreign process below this is not worth a word."""


def main(request: Facts, wire: Wire, modules: Dict[str, str]) -> None:
    """Sample until told to stop, then say what was seen."""
    del modules
    end = time.monotonic() + float(request["limit_s"])
    before, began = _processors(), time.monotonic()
    busy_before = _times_of_all()
    gpus: Dict[int, Facts] = {}
    while time.monotonic() < end:
        for gpu in _sample_gpus():
            _keep_worst(gpus, gpu)
        if select.select([0], [], [], float(request["every_s"]))[0]:
            break
    took_s = max(time.monotonic() - began, 1e-6)
    facts: Facts = {"gpus": [gpus[index] for index in sorted(gpus)], "took_s": round(took_s, 2)}
    facts.update(
        _compare(before, _processors()),
        quota_cores=cgroups.quota_cores(read_text("/proc/self/cgroup")),
        foreign=_foreign(busy_before, took_s),
    )
    wire.send({"gauges": facts})


def _keep_worst(gpus: Dict[int, Facts], gpu: Facts) -> None:
    """Keep the hottest sample with the lowest clock seen under load, and every throttle reason."""
    old = gpus.setdefault(gpu["index"], dict(gpu, throttle=[]))
    for name, worse in (("temperature_c", max), ("power_w", max), ("clock_mhz", max), ("clock_max_mhz", max)):
        if gpu[name] is not None:
            old[name] = gpu[name] if old[name] is None else worse(old[name], gpu[name])
    old["throttle"] = sorted(set(old["throttle"]) | set(gpu["throttle"]))


def _sample_gpus() -> List[Facts]:
    tool = find_tool("nvidia-smi")
    if not tool:
        return []
    for reason in REASONS:
        try:
            text = ask([tool, f"--query-gpu={FIELDS},{reason}", "--format=csv,noheader,nounits"], 3.0)
        except NoAnswerError:
            continue
        return parse_samples(text)
    return []


def parse_samples(text: str) -> List[Facts]:
    """Read one line a GPU: index, clock, its maximum, temperature, power, mask of throttle reasons."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != COLUMNS or not cells[0].isdigit():
            continue
        mask = int(cells[5], 16) if cells[5].lower().startswith("0x") else 0
        found.append(
            {
                "index": int(cells[0]),
                "clock_mhz": smi.whole(cells[1]),
                "clock_max_mhz": smi.whole(cells[2]),
                "temperature_c": smi.whole(cells[3]),
                "power_w": smi.whole(cells[4]),
                "throttle": [name for bit, name in THROTTLES.items() if mask & bit],
            }
        )
    return found


def _processors() -> Facts:
    """Read the counters of all processors, and of the control group that holds us back."""
    cells = [int(word) for word in read_text("/proc/stat").split("\n")[0].split()[1:]]
    idle = sum(cells[3:5])
    return {
        "all": sum(cells[:8]),
        "idle": idle,
        "steal": sum(cells[7:8]),
        "held": cgroups.held_s(read_text("/proc/self/cgroup")),
    }


def _compare(before: Facts, after: Facts) -> Facts:
    total = max(after["all"] - before["all"], 1)
    held = None if after["held"] is None or before["held"] is None else round(after["held"] - before["held"], 2)
    return {
        "busy_share": round(1 - (after["idle"] - before["idle"]) / total, 3),
        "steal_share": round((after["steal"] - before["steal"]) / total, 3),
        "held_s": held,
    }


def _times_of_all() -> Dict[int, int]:
    return {pid: ticks for pid in processes.all_pids() for ticks in [_ticks_of(pid)] if ticks is not None}


def _ticks_of(pid: int) -> Optional[int]:
    """Read the processor time of a process in clock ticks."""
    text = read_text("/proc/%d/stat" % pid)
    if not text:
        return None
    cells = text.rsplit(")", 1)[1].split()
    return int(cells[11]) + int(cells[12])


def _foreign(before: Dict[int, int], took_s: float) -> List[Facts]:
    """List the processes of others that took the most time; what began with us is the load itself."""
    found: List[Facts] = []
    for pid, ticks in before.items():
        now = _ticks_of(pid)
        cores = ((now or ticks) - ticks) / TICKS / took_s
        if cores > BUSY_CORES and not _is_ours(pid):
            found.append(
                {
                    "pid": pid,
                    "owner": owner_of(pid),
                    "command": processes.command_of(pid)[:120],
                    "cores": round(cores, 2),
                }
            )
    return sorted(found, key=lambda process: -process["cores"])[:3]


def _is_ours(pid: int) -> bool:
    return "compile(source" in processes.command_of(pid)
