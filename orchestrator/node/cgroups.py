"""Reads what the control groups of this process allow, versions 1 and 2 alike."""

from __future__ import annotations

import os

from orchestrator.node.probe_command import read_text

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Iterator, List, Optional

ROOT = "/sys/fs/cgroup"


def read_along(cgroup: str, controller: str, name: str, name_v1: str, root: str = ROOT) -> Iterator[str]:
    """Read a file of a controller in every control group of /proc/self/cgroup, the innermost first."""
    for line in cgroup.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            base, file = root, name
        elif controller in controllers.split(","):
            places = (f"{root}/{controller}", f"{root}/{controllers}")
            base, file = next((place for place in places if os.path.isdir(place)), root), name_v1
        else:
            continue
        if not file:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            text = read_text("/".join([base, *parts[:depth], file]))
            if text:
                yield text


def quota_cores(cgroup: str, root: str = ROOT) -> Optional[float]:
    """Find the cores that may be used; None where there is no limit."""
    found: List[float] = []
    for text in read_along(cgroup, "cpu", "cpu.max", "", root):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit():
            found.append(int(quota) / int(period))
    quotas = read_along(cgroup, "cpu", "", "cpu.cfs_quota_us", root)
    periods = read_along(cgroup, "cpu", "", "cpu.cfs_period_us", root)
    for quota, period in zip(quotas, periods):
        if quota.isdigit() and period.isdigit():
            found.append(int(quota) / int(period))
    return min(found, default=None)


def held_s(cgroup: str, root: str = ROOT) -> Optional[float]:
    """Read for how long, in seconds, processes were held back; the longest along the path."""
    found: List[float] = []
    for text in read_along(cgroup, "cpu", "cpu.stat", "cpu.stat", root):
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name in ("throttled_usec", "throttled_time"):
                found.append(int(value) / (1e6 if name == "throttled_usec" else 1e9))
    return max(found, default=None)


def free_pids(cgroup: str, root: str = ROOT) -> Optional[int]:
    """Count the processes that may still be started; None where there is no limit."""
    most = list(read_along(cgroup, "pids", "pids.max", "pids.max", root))
    now = list(read_along(cgroup, "pids", "pids.current", "pids.current", root))
    found = [int(limit) - int(used) for limit, used in zip(most, now) if limit.isdigit() and used.isdigit()]
    return min(found, default=None)


def oom_kills(cgroup: str, root: str = ROOT) -> Optional[int]:
    """Read how many processes of the innermost group the kernel has killed for memory; None where it does not count."""
    # Version 2 counts in memory.events what happened in groups below as well: a neighbour's end is not ours.
    for name in ("memory.events.local", "memory.events"):
        for text in read_along(cgroup, "memory", name, "memory.oom_control", root):
            for line in text.splitlines():
                word, _, value = line.partition(" ")
                if word == "oom_kill" and value.isdigit():
                    return int(value)
    return None
