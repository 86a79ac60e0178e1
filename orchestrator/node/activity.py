"""Measures what the ranks of a run do right now: processor time, bytes moved, GPUs at work, outputs that grow."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, List, Optional, Tuple

from orchestrator.node import processes, report, runfolder
from orchestrator.node.probe_command import NoAnswerError, ask, read_text
from orchestrator.node.probe_gpus import find_tool
from orchestrator.node.smi import whole

Facts = Dict[str, Any]
TICKS = os.sysconf("SC_CLK_TCK")
WINDOW_S = 2.0
MOST_FILES = 5000
MIB = float(1 << 20)
GPU_FIELDS = "index,utilization.gpu,power.draw,power.limit"
GPU_COLUMNS = 4
GPU_S = 4.0


def measure(folder: str, order: Facts) -> Facts:
    """Watch the ranks of a run folder for a moment."""
    status = runfolder.read_status(folder) or {}
    ranks = [event for event in report.last_ranks(status) if processes.alive(event["pid"], event["ticks"])]
    began, before = time.monotonic(), {event["rank"]: read_work(event["pid"]) for event in ranks}
    time.sleep(float(order.get("window_s") or WINDOW_S))
    took_s = time.monotonic() - began
    found = []
    for event in ranks:
        process = processes.read_process(event["pid"])
        if process is not None and process.ticks == event["ticks"]:
            found.append(
                {"rank": event["rank"], "state": process.state, **compare(before[event["rank"]], event, took_s)}
            )
    gpus, why = read_gpus(status)
    return {
        "ranks": found,
        "outputs_age_s": newest_age_s(os.path.join(folder, "outputs")),
        "gpus": gpus,
        "gpus_why": why,
    }


Work = Tuple[Dict[int, int], Optional[int]]
"""Ticks by process of a rank's tree; bytes that it has read and written, None where that may not be read."""


def read_work(pid: int) -> Work:
    """Read what the tree of one rank has done so far: data loaders and compilers work for it as well."""
    ticks: Dict[int, int] = {}
    moved: Optional[int] = 0
    for one in (pid, *(process.pid for process in processes.descendants(pid))):
        cells = read_text("/proc/%d/stat" % one).rpartition(")")[2].split()
        if len(cells) > 14:  # noqa: PLR2004 - user and system time, also of children that have ended
            ticks[one] = sum(int(cell) for cell in cells[11:15])
        counts = dict(line.split(": ", 1) for line in read_text("/proc/%d/io" % one).splitlines() if ": " in line)
        if "rchar" not in counts:
            moved = None
        elif moved is not None:
            moved += int(counts["rchar"]) + int(counts["wchar"])
    return ticks, moved


def compare(before: Work, event: Facts, took_s: float) -> Facts:
    """Say how much was done between two looks; of what began meanwhile all."""
    ticks, moved = read_work(event["pid"])
    spent = sum(max(0, now - before[0].get(pid, 0)) for pid, now in ticks.items())
    rate = None if moved is None or before[1] is None else round(max(0, moved - before[1]) / MIB / took_s, 3)
    return {"cpu_cores": round(spent / TICKS / took_s, 3), "io_mib_s": rate}


def newest_age_s(folder: str) -> Optional[float]:
    """Say how long ago anything below a folder was written last; None where nothing lies there."""
    moments: List[float] = []
    seen = 0
    for top, _, names in os.walk(folder):
        for name in names:
            seen += 1
            with contextlib.suppress(OSError):
                moments.append(os.stat(os.path.join(top, name)).st_mtime)
        if seen > MOST_FILES:
            break
    return round(max(0.0, time.time() - max(moments)), 1) if moments else None


def read_gpus(status: Facts) -> Tuple[List[Facts], str]:
    """Read how busy the GPUs are and what power they draw; a run that is known to use none asks for none."""
    used = status.get("gpu_memory")
    if used == {}:
        return [], ""
    tool = find_tool("nvidia-smi")
    if not tool:
        return [], "there is no nvidia-smi"
    try:
        text = ask([tool, f"--query-gpu=uuid,{GPU_FIELDS}", "--format=csv,noheader,nounits"], GPU_S)
    except NoAnswerError as error:
        return [], str(error)
    gpus = []
    for line in text.splitlines():
        uuid, *cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != GPU_COLUMNS or (used and uuid not in used):
            continue
        index, busy, power, limit = map(whole, cells)
        gpus.append({"index": index, "util_percent": busy, "power_w": power, "power_limit_w": limit})
    return gpus, ""
