"""What else runs on this machine: who keeps the processors busy, and who hangs inside the kernel."""

from __future__ import annotations

import os
import time

from orchestrator.node import glance, processes
from orchestrator.node.probe_command import owner_of, read_text
from orchestrator.node.record import record

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

    Facts = Dict[str, Any]
    Table = Dict[int, "Glance"]

LOOK_S = 0.25
STUCK_LOOK_S = 1.0
MOST = 5
FRESH_S = 0.25
"""A look at all processes that is not older serves everybody."""
WAITS = (
    *("nfs", "rpc", "nvidia", "os_acquire", "amdgpu", "kfd", "lustre", "ldlm", "ptlrpc", "ceph", "fuse", "gpfs"),
    *("cifs", "smb", "beegfs"),
)
HIDDEN = ("", "0")
"""What the kernel says of a wait that is not ours to see."""


if TYPE_CHECKING:

    class Glance(NamedTuple):
        """One process at one moment."""

        ticks: int
        state: str
        parent: int
        kernel: bool
        used: int
        """Clock ticks on the processors."""

else:
    Glance = record("Glance", "ticks", "state", "parent", "kernel", "used")


def probe_work(request: Facts) -> Facts:
    """Measure the load, and where there is some, who makes it."""
    del request
    load1, load5, _ = os.getloadavg()
    facts: Facts = {"load1": round(load1, 2), "load5": round(load5, 2), "cores": os.cpu_count() or 1}
    if glance.is_loaded():
        began, texts = glance.early_look()
        first = parse_table(texts)
        if not first:
            began, first = glance_lately()
        time.sleep(max(0.0, began + LOOK_S - time.monotonic()))
        again = glance_at_all()
        facts["busy"] = name_busy(first, again, time.monotonic() - began)
    return {"system": facts}


def glance_at_all() -> Table:
    """Look at every process."""
    return parse_table(glance.read_stats())


def parse_table(texts: Dict[int, bytes]) -> Table:
    """Read what was seen of every process."""
    parsed = {pid: parse_stat(text.decode("utf-8", "replace")) for pid, text in texts.items()}
    return {pid: one for pid, one in parsed.items() if one is not None}


def glance_lately() -> Tuple[float, Table]:
    """Give a look at every process that is still fresh, and its moment."""
    if not _looks or time.monotonic() - _looks[-1][0] > FRESH_S:
        table = glance_at_all()
        _looks.append((time.monotonic(), table))
    return _looks[-1]


_looks: List[Tuple[float, Table]] = []


def list_users() -> List[int]:
    """List the processes that are no threads of the kernel."""
    return [pid for pid, one in glance_lately()[1].items() if not one.kernel]


def parse_stat(text: str) -> Optional[Glance]:
    """Read /proc/PID/stat; None when it tells nothing."""
    fields = text.rpartition(")")[2].split()
    try:
        # From field 3 of proc(5) on: state, ..., flags, ..., utime, stime, ..., starttime.
        kernel = bool(int(fields[6]) & 0x00200000)
        return Glance(int(fields[19]), fields[0], int(fields[1]), kernel, int(fields[11]) + int(fields[12]))
    except (IndexError, ValueError):
        return None


def name_busy(first: Dict[int, Glance], again: Dict[int, Glance], seconds: float) -> List[Facts]:
    """Name the processes that used most of the processors between two looks, the busiest first; ourselves left out."""
    rate = seconds * os.sysconf("SC_CLK_TCK")
    ours = list_ours(again)
    used = {
        pid: (now.used - first[pid].used) / rate
        for pid, now in again.items()
        if pid in first and first[pid].ticks == now.ticks and pid not in ours
    }
    busiest = sorted(used, key=lambda pid: -used[pid])[:MOST]
    return [
        {"pid": pid, "owner": owner_of(pid), "command": processes.command_of(pid)[:80], "cores": round(used[pid], 2)}
        for pid in busiest
        if used[pid] >= 0.1  # noqa: PLR2004 - what is less is no load
    ]


def list_ours(table: Dict[int, Glance]) -> Set[int]:
    """List ourselves, what the porter has started beside us, and what that has started."""
    porter = os.getppid()
    beside = {pid for pid, one in table.items() if one.parent == porter} if porter > 1 else set()
    return {os.getpid(), *beside, *(pid for pid, one in table.items() if one.parent in beside)}


def probe_stuck(request: Facts) -> Facts:
    """List processes that wait inside the kernel for a driver or a file system: in the very same wait at two looks."""
    del request
    first = {pid: switches_of(pid) for pid in waiting()}
    stuck: List[Facts] = []
    if first:
        time.sleep(STUCK_LOOK_S)
        stuck = [
            {"pid": pid, "command": processes.command_of(pid)[:80], "waits_in": read_text("/proc/%d/wchan" % pid)}
            for pid in waiting()
            if pid in first and first[pid] and switches_of(pid) == first[pid]
        ]
    told = [one for one in stuck if is_of_driver(one["waits_in"])]
    hidden = [one["pid"] for one in stuck if one["waits_in"] in HIDDEN and one["command"]]
    answer: Facts = {"system": {"stuck": told}}
    if hidden and not told:
        answer["system"]["stuck"] = None
        what = "pid %d waits in the kernel, and where is not ours to see" % hidden[0]
        answer["unknown"] = {"system.stuck": what}
    return answer


def waiting() -> List[int]:
    """List the processes that wait inside the kernel and cannot be killed."""
    return [pid for pid, one in glance_lately()[1].items() if one.state == "D" and not one.kernel]


def is_of_driver(waits_in: str) -> bool:
    """Tell whether a function of the kernel is one of a driver or a file system of the network."""
    return waits_in.startswith("nv_") or any(word in waits_in for word in WAITS)


def switches_of(pid: int) -> str:
    """Give the count of a process's context switches: equal ones mean that it has not run in between."""
    lines = read_text("/proc/%d/status" % pid).splitlines()
    return " ".join(line for line in lines if "ctxt_switches" in line)
