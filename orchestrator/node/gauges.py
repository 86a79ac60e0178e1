"""Watches this node while a load runs: clocks, heat and throttling of the GPUs; what the processors do, and for whom.

request: {"every_s": S, "limit_s": S}. Each order {"op": "report"} is answered with {"gauges": {...}}: what was seen since the last
one. It ends with the orders, or when the limit has passed.
"""

from __future__ import annotations

import glob
import os
import select
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from orchestrator.node import cgroups, processes, smi_gauges
from orchestrator.node.probe_command import TIME_IS_UP, NoAnswerError, ask, owner_of, read_text
from orchestrator.node.probe_gpus import find_tool
from orchestrator.node.smi import OddOutputError
from orchestrator.node.wire import Wire

Facts = Dict[str, Any]
Tool = Tuple[List[str], Callable[[str], List[Facts]]]
ASK_S = 4.0
TICKS = os.sysconf("SC_CLK_TCK")
BUSY_CORES = 0.2
"""A foreign process below this is not worth a word."""
OURS = "compile(source"
"""In the words of every process of node/exercise.py."""
MOST_PROCESSORS = 16
"""So many tell how fast all run."""
PROCESSORS = "/sys/devices/system/cpu"


def main(request: Facts, wire: Wire, modules: Dict[str, str]) -> None:
    """Sample until the orders end, and say what was seen whenever asked."""
    del modules
    end = time.monotonic() + float(request["limit_s"])
    tools = list_tools()
    window = Window()
    while time.monotonic() < end:
        if select.select([0], [], [], float(request["every_s"]))[0]:
            orders = wire.ready_orders()
            if orders is None:
                return
            for _ in orders:
                wire.send({"gauges": window.report()})
                window = Window()
            continue
        window.sample(tools)


class Window:
    """What was seen between two reports."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.before = read_processors()
        self.times = read_times()
        self.heat = count_heat()
        self.clocks: List[int] = []
        self.gpus: Dict[int, List[Facts]] = {}

    def sample(self, tools: List[Tool]) -> None:
        """Look once at everything that changes while it works."""
        clock = read_clock()
        self.clocks += [] if clock is None else [clock]
        for gpu in ask_gpus(tools):
            self.gpus.setdefault(gpu["index"], []).append(gpu)

    def report(self) -> Facts:
        """Say what was seen."""
        took_s = max(time.monotonic() - self.began, 1e-6)
        return {
            "took_s": round(took_s, 2),
            "gpus": [fold_samples(samples) for _, samples in sorted(self.gpus.items())],
            **compare_processors(self.before, read_processors()),
            **compare_times(self.times, read_times(), took_s),
            "quota_cores": cgroups.quota_cores(read_text("/proc/self/cgroup")),
            "clock_mhz": middle(self.clocks),
            "clock_max_mhz": read_mhz("cpuinfo_max_freq"),
            "hot_events": count_heat() - self.heat,
        }


def fold_samples(samples: List[Facts]) -> Facts:
    """Make one of the samples of a GPU: the middle clock, the highest of the rest, every reason that was seen."""
    folded: Facts = {"index": samples[0]["index"]}
    for name, fold in (("clock_mhz", middle), ("clock_max_mhz", max), ("temperature_c", max), ("power_w", max)):
        known = [sample[name] for sample in samples if sample[name] is not None]
        folded[name] = fold(known) if known else None
    folded["throttle"] = sorted({reason for sample in samples for reason in sample["throttle"]})
    return folded


def middle(values: List[int]) -> Optional[int]:
    """Give the median; the lower one of two."""
    return sorted(values)[(len(values) - 1) // 2] if values else None


def list_tools() -> List[Tool]:
    """List what can be asked of GPUs, the best first; options that a version does not know come before those that all do."""
    query = f"--query-gpu={smi_gauges.NVIDIA_FIELDS}"
    metric = ["metric", "--clock", "--temperature", "--power"]
    wanted: Tuple[Tuple[str, List[List[str]], Callable[[str], List[Facts]]], ...] = (
        (
            "nvidia-smi",
            # Renamed with driver 535: throttle reasons are event reasons now.
            [
                [f"{query},clocks_{word}_reasons.active", "--format=csv,noheader,nounits"]
                for word in ("event", "throttle")
            ],
            smi_gauges.parse_nvidia_samples,
        ),
        ("amd-smi", [[*metric, "--throttle", "--json"], [*metric, "--json"]], smi_gauges.parse_amd_samples),
        ("rocm-smi", [["--showclocks", "--showtemp", "--showpower", "--json"]], smi_gauges.parse_rocm_samples),
    )
    found: List[Tool] = []
    for name, words, parse in wanted:
        tool = find_tool(name)
        found += [([tool, *one], parse) for one in words] if tool else []
    return found


def ask_gpus(tools: List[Tool]) -> List[Facts]:
    """Ask the first tool that answers; those before it are not asked again."""
    while tools:
        argv, parse = tools[0]
        try:
            found = parse(ask(argv, ASK_S))
        except (NoAnswerError, OddOutputError) as error:
            # A driver at work may be late once.
            if TIME_IS_UP in str(error):
                return []
            found = []
        if found:
            return found
        tools.pop(0)
    return []


def read_processors() -> Facts:
    """Read the counters of all processors, and of the control group that holds us back."""
    cells = [int(word) for word in read_text("/proc/stat").split("\n")[0].split()[1:]]
    return {
        "all": sum(cells[:8]),
        "idle": sum(cells[3:5]),
        "steal": sum(cells[7:8]),
        "held": cgroups.held_s(read_text("/proc/self/cgroup")),
    }


def compare_processors(before: Facts, after: Facts) -> Facts:
    """Tell the shares of busy and stolen time, and for how long we were held back."""
    total = after["all"] - before["all"]
    held = None if after["held"] is None or before["held"] is None else round(after["held"] - before["held"], 2)
    if total <= 0:
        return {"held_s": held}
    return {
        "busy_share": round(1 - (after["idle"] - before["idle"]) / total, 3),
        "steal_share": round((after["steal"] - before["steal"]) / total, 3),
        "held_s": held,
    }


def read_times() -> Dict[int, int]:
    """Read the processor time of every process that can be seen, in clock ticks."""
    found = {}
    for pid in processes.all_pids():
        cells = read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()
        if len(cells) > 12:  # noqa: PLR2004 - user and system time
            found[pid] = int(cells[11]) + int(cells[12])
    return found


def compare_times(before: Dict[int, int], after: Dict[int, int], took_s: float) -> Facts:
    """Name the foreign processes that took most; what began meanwhile counts with all it took."""
    foreign: List[Facts] = []
    ours_cores = 0.0
    for pid, ticks in after.items():
        cores = (ticks - before.get(pid, 0)) / TICKS / took_s
        if cores < BUSY_CORES:
            continue
        command = processes.command_of(pid)
        if OURS in command:
            ours_cores += cores
        else:
            foreign.append({"pid": pid, "owner": owner_of(pid), "command": command[:120], "cores": round(cores, 2)})
    foreign.sort(key=lambda process: -float(process["cores"]))
    return {"foreign": foreign[:3], "ours_cores": round(ours_cores, 2), "cores": os.cpu_count()}


def read_clock() -> Optional[int]:
    """Read how fast the processors run that we may use."""
    return read_mhz("scaling_cur_freq")


def read_mhz(name: str) -> Optional[int]:
    """Read a clock of cpufreq, which most virtual machines lack: the middle one of those that we may use."""
    chosen = sorted(os.sched_getaffinity(0))[:MOST_PROCESSORS]
    texts = [read_text(f"{PROCESSORS}/cpu{number}/cpufreq/{name}") for number in chosen]
    return middle([int(text) // 1000 for text in texts if text.isdigit()])


def count_heat() -> int:
    """Count how often a processor has slowed down because of heat."""
    texts = [read_text(path) for path in glob.glob(f"{PROCESSORS}/cpu[0-9]*/thermal_throttle/package_throttle_count")]
    return sum(int(text) for text in texts if text.isdigit())
