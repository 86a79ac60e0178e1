"""Measures what the ranks of a run do right now: processor time, bytes moved, GPUs at work, outputs that grow."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, List, Optional, Tuple

from orchestrator.node import gpu_pulse, processes, report, runfolder, sockets
from orchestrator.node.parts import Parts
from orchestrator.node.probe_command import read_text

Facts = Dict[str, Any]
TICKS = os.sysconf("SC_CLK_TCK")
WINDOW_S = 2.0
MOST_S = 8.0
LATER_S = 4.0
"""Beyond the window, for a driver or a file system that is slow."""
MOST_FILES = 5000
MIB = float(1 << 20)


def measure(folder: str, order: Facts) -> Facts:
    """Watch the ranks of a run folder for a moment."""
    status = runfolder.read_status(folder) or {}
    ranks = [event for event in report.last_ranks(status) if processes.alive(event["pid"], event["ticks"])]
    traffic = sockets.read_traffic()
    began, before = time.monotonic(), {event["rank"]: read_work(event["pid"]) for event in ranks}
    window_s = min(float(order.get("window_s") or WINDOW_S), MOST_S)
    parts = Parts(
        {
            "gpus": lambda: gpu_pulse.read_pulse(status.get("gpu_memory")),
            "outputs_age_s": lambda: newest_age_s(os.path.join(folder, "outputs")),
        }
    )
    time.sleep(window_s)
    took_s, later = time.monotonic() - began, sockets.read_traffic()
    found = []
    for event in ranks:
        process = processes.read_process(event["pid"])
        if process is not None and process.ticks == event["ticks"]:
            moved = sockets.count_moved(traffic, later, tree_of(event["pid"]))
            net = None if moved is None else round(moved / MIB / took_s, 3)
            work = compare(before[event["rank"]], event, took_s)
            found.append({"rank": event["rank"], "state": process.state, **work, "net_mib_s": net})
    told, missing = parts.take(began + window_s + LATER_S)
    gpus, why = told.get("gpus", ([], missing.get("gpus", "")))
    return {"ranks": found, "outputs_age_s": told.get("outputs_age_s"), "gpus": gpus, "gpus_why": why}


Work = Tuple[Dict[int, int], Optional[int]]
"""Ticks by process of a rank's tree; bytes that it has read and written, None where that may not be read."""


def read_work(pid: int) -> Work:
    """Read what the tree of one rank has done so far: data loaders and compilers work for it as well."""
    ticks: Dict[int, int] = {}
    moved: Optional[int] = 0
    for one in tree_of(pid):
        cells = read_text("/proc/%d/stat" % one).rpartition(")")[2].split()
        if len(cells) > 14:  # noqa: PLR2004 - user and system time, also of children that have ended
            ticks[one] = sum(int(cell) for cell in cells[11:15])
        counts = dict(line.split(": ", 1) for line in read_text("/proc/%d/io" % one).splitlines() if ": " in line)
        if "rchar" not in counts:
            moved = None
        elif moved is not None:
            moved += int(counts["rchar"]) + int(counts["wchar"])
    return ticks, moved


def tree_of(pid: int) -> Tuple[int, ...]:
    """List a process and all below it."""
    return (pid, *(process.pid for process in processes.descendants(pid)))


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
