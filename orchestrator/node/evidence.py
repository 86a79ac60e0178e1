"""Writes down what this node knows of itself at the moment a run breaks: a minute later it knows it no more."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from orchestrator.node import cgroups, clock, flight, kernel_log, look, processes, runfolder
from orchestrator.node.gpu_use import GpuQuestion
from orchestrator.node.parts import Parts
from orchestrator.node.probe_command import read_text
from orchestrator.node.probe_host import SHM, cgroup_memory_limit, parse_meminfo, probe_limits

Facts = Dict[str, Any]
PARTS_S = 5.0
"""The verdict waits for it."""
GPUS_S = 4.0
LOOK_S = 0.3
POLL_S = 0.01
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
SKIPPED = frozenset(
    {"__pycache__", "node_modules", "site-packages", "experiments", "outputs", "wandb", "runs", "logs", "multirun"}
)


def gather(folder: str, order: Facts) -> Facts:
    """Gather all of it; what cannot be read says why under "missing"."""
    del order
    until = time.monotonic() + PARTS_S
    # Before there are threads: it forks.
    question = GpuQuestion(limit_s=GPUS_S)
    status = runfolder.read_status(folder) or {}
    workdir = str(status.get("workdir") or "")
    places = [workdir, os.path.expanduser("~"), os.path.join(folder, "outputs"), "/tmp", SHM]  # noqa: S108 - looked at
    groups = groups_of(status)
    parts = Parts(
        {
            "kernel": lambda: read_kernel(status),
            "memory": lambda: read_memory(groups),
            "oom_kills": lambda: cgroups.oom_kills(groups),
            "limits": lambda: probe_limits({}).get("limits"),
            "top": list_largest,
            "code": lambda: hash_code(workdir),
            # A rank that ran out of time in a collective has written it down before it ended.
            "flight": lambda: flight.take_dumps(folder, {"left": True}),
            # Each by itself: one file system that hangs says nothing against the others.
            **{f"disk {path}": functools.partial(read_disk, path) for path in places if path},
        }
    )
    told = question.wait()
    found, missing = parts.take(until)
    lines, why = found.pop("kernel", ([], missing.get("kernel", "")))
    disks = [found.pop(f"disk {path}", None) for path in places]
    return {
        **found,
        "kernel": lines,
        "kernel_why": why,
        "disks": list(fold_disks(disks)),
        "taken": clock.now(),
        "boot_id": processes.boot_id(),
        "uptime_s": round(clock.uptime_s(), 1),
        "load": list(os.getloadavg()),
        "gpus": told["gpus"],
        "gpus_why": told["why"],
        "missing": missing,
        "looks": wait_for_looks(folder, until),
    }


def wait_for_looks(folder: str, until: float) -> List[Facts]:
    """Read the last looks; the order to stop, before which one is taken, comes right behind the one to gather."""
    until = min(until, time.monotonic() + LOOK_S)
    while True:
        looks = look.read_looks(folder)
        if looks or time.monotonic() >= until or runfolder.supervisor_of(runfolder.read_status(folder) or {}) is None:
            return looks
        time.sleep(POLL_S)


def groups_of(status: Facts) -> str:
    """Read the control groups of the run: we came by another session, which has some of its own."""
    supervisor = runfolder.supervisor_of(status)
    return read_text("/proc/%s/cgroup" % ("self" if supervisor is None else supervisor.pid))


def read_kernel(status: Facts) -> Tuple[List[List[Any]], str]:
    """Read what the kernel said since shortly before the run began: how many seconds ago, and the words."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    begun = next((float(event["time"]) for event in status.get("events", []) if event["ev"] == "ready"), None)
    age_s = 0.0 if begun is None else max(0.0, clock.now() - begun) + BEFORE_S
    found, why = kernel_log.read_lines(lambda part: MATTERS.search(part) is not None)
    lines = [[round(now - moment, 1), text[:MOST_CHARS]] for moment, text in found if now - moment <= age_s]
    return lines[-MOST_LINES:], why


def read_memory(cgroup: str) -> Facts:
    """Read how much memory there is, and how much of what we may have is used."""
    sizes = parse_meminfo(read_text("/proc/meminfo"))
    limit = cgroup_memory_limit(cgroup)
    used = next(cgroups.read_along(cgroup, "memory", "memory.current", "memory.usage_in_bytes"), "")
    return {
        "total_mib": sizes.get("MemTotal", 0) // MIB,
        "available_mib": sizes.get("MemAvailable", 0) // MIB,
        "swap_free_mib": sizes.get("SwapFree", 0) // MIB,
        "limit_mib": None if limit is None else limit // MIB,
        "usage_mib": int(used) // MIB if used.isdigit() else None,
    }


def read_disk(path: str) -> Optional[Facts]:
    """Read the free space of the file system of a folder; None where there is no such folder."""
    try:
        system, device = os.statvfs(path), os.stat(path).st_dev
    except FileNotFoundError:
        return None
    return {
        "path": path,
        "device": device,
        "free_mib": system.f_bavail * system.f_frsize // MIB,
        "total_mib": system.f_blocks * system.f_frsize // MIB,
        # A file system without a count of inodes (btrfs) says 0 of 0.
        "free_inodes": system.f_favail if system.f_files else None,
    }


def fold_disks(disks: Iterable[Optional[Facts]]) -> Iterator[Facts]:
    """Give each file system once, under the first folder that lies on it."""
    seen = set()
    for disk in disks:
        if disk is None or disk["device"] in seen:
            continue
        seen.add(disk["device"])
        yield {name: value for name, value in disk.items() if name != "device"}


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
            if not os.path.isfile(path):
                # To open a pipe is to wait for its other end.
                continue
            with contextlib.suppress(OSError):
                size += os.path.getsize(path)
                if size > MOST_BYTES or len(found) >= MOST_FILES:
                    return {}
                with open(path, "rb") as file:
                    found[os.path.relpath(path, workdir)] = hashlib.sha256(file.read()).hexdigest()[:12]
    return found
