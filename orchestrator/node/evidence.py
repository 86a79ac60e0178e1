"""Writes down what this node knows of itself at the moment a run breaks: a minute later it knows it no more."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from typing import Any, Dict, Iterator, List, Tuple

from orchestrator.node import cgroups, clock, kernel_log, look, processes, runfolder
from orchestrator.node.gpu_use import GpuQuestion
from orchestrator.node.probe_command import read_text
from orchestrator.node.probe_host import SHM, cgroup_memory_limit, parse_meminfo, probe_limits

Facts = Dict[str, Any]
MIB = 1 << 20
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / MIB
MATTERS = re.compile(
    rb"oom|out of memory|killed process|segfault|trap|general protection|Xid|NVRM|amdgpu|I/O error|nfs|lustre"
    rb"|remount|EXT4-fs|XFS|hung|blocked for more|lockup|stall|Hardware Error|EDAC|link is (?:not ready|down)|Link Down|mlx5|bnxt",
    re.IGNORECASE,
)
MOST_LINES = 400
MOST_CHARS = 400
MOST_FILES = 300
MOST_BYTES = 10 * MIB
TOP = 5
BEFORE_S = 60.0
"""A GPU may have said that it is ill before the first rank felt it."""
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "experiments"})


def gather(folder: str, order: Facts) -> Facts:
    """Gather all of it; what cannot be read is left out or says why."""
    del order
    question = GpuQuestion()
    status = runfolder.read_status(folder) or {}
    workdir = str(status.get("workdir") or "")
    lines, why = read_kernel(status)
    found: Facts = {
        "taken": clock.now(),
        "boot_id": processes.boot_id(),
        "uptime_s": round(clock.uptime_s(), 1),
        "load": list(os.getloadavg()),
        "kernel": lines,
        "kernel_why": why,
        "memory": read_memory(),
        "oom_kills": cgroups.oom_kills(read_text("/proc/self/cgroup")),
        "disks": list(read_disks([workdir, os.path.expanduser("~"), os.path.join(folder, "outputs"), "/tmp", SHM])),  # noqa: S108 - looked at
        "limits": probe_limits({}).get("limits"),
        "top": list_largest(),
        "looks": look.read_looks(folder),
        "code": hash_code(workdir),
    }
    told = question.wait()
    return {**found, "gpus": told["gpus"], "gpus_why": told["why"]}


def read_kernel(status: Facts) -> Tuple[List[List[Any]], str]:
    """Read what the kernel said since shortly before the run began: how many seconds ago, and the words."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    begun = next((float(event["time"]) for event in status.get("events", []) if event["ev"] == "ready"), None)
    age_s = 0.0 if begun is None else max(0.0, clock.now() - begun) + BEFORE_S
    found, why = kernel_log.read_lines(lambda part: MATTERS.search(part) is not None)
    lines = [[round(now - moment, 1), text[:MOST_CHARS]] for moment, text in found if now - moment <= age_s]
    return lines[-MOST_LINES:], why


def read_memory() -> Facts:
    """Read how much memory there is, and how much of what we may have is used."""
    sizes = parse_meminfo(read_text("/proc/meminfo"))
    cgroup = read_text("/proc/self/cgroup")
    limit = cgroup_memory_limit(cgroup)
    used = next(cgroups.read_along(cgroup, "memory", "memory.current", "memory.usage_in_bytes"), "")
    return {
        "total_mib": sizes.get("MemTotal", 0) // MIB,
        "available_mib": sizes.get("MemAvailable", 0) // MIB,
        "swap_free_mib": sizes.get("SwapFree", 0) // MIB,
        "limit_mib": None if limit is None else limit // MIB,
        "usage_mib": int(used) // MIB if used.isdigit() else None,
    }


def read_disks(paths: List[str]) -> Iterator[Facts]:
    """Read the free space of each file system once."""
    seen = set()
    for path in paths:
        try:
            system, device = os.statvfs(path), os.stat(path).st_dev
        except OSError:
            continue
        if device in seen:
            continue
        seen.add(device)
        yield {
            "path": path,
            "free_mib": system.f_bavail * system.f_frsize // MIB,
            "total_mib": system.f_blocks * system.f_frsize // MIB,
            # A file system without a count of inodes (btrfs) says 0 of 0.
            "free_inodes": system.f_favail if system.f_files else None,
        }


def list_largest() -> List[Facts]:
    """List the processes that hold most memory."""
    sizes = []
    for pid in processes.all_pids():
        cells = read_text("/proc/%d/statm" % pid).split()
        if len(cells) > 1:
            sizes.append((int(cells[1]), pid))
    return [
        {"pid": pid, "rss_mib": int(pages * PAGE_MIB), "command": processes.command_of(pid)}
        for pages, pid in sorted(sizes, reverse=True)[:TOP]
    ]


def hash_code(workdir: str) -> Dict[str, str]:
    """Hash the Python files of the working directory, so that nodes can be compared; nothing where there are too many."""
    found: Dict[str, str] = {}
    size = 0
    for top, folders, names in os.walk(workdir or os.devnull):
        folders[:] = sorted(one for one in folders if one not in SKIPPED and not one.startswith("."))
        for name in sorted(names):
            if not name.endswith(".py"):
                continue
            path = os.path.join(top, name)
            with contextlib.suppress(OSError):
                size += os.path.getsize(path)
                if size > MOST_BYTES or len(found) >= MOST_FILES:
                    return {}
                with open(path, "rb") as file:
                    found[os.path.relpath(path, workdir)] = hashlib.sha256(file.read()).hexdigest()[:12]
    return found
