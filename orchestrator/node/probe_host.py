"""What the machine is: identity, system, processors, memory, limits."""

from __future__ import annotations

import os
import resource
import sys

from orchestrator.node import cgroups
from orchestrator.node.probe_command import find_program, read_text, user_name

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    Facts = Dict[str, Any]

GIB = float(1 << 30)
SHM = "/dev/shm"  # noqa: S108 - it is looked at, nothing is written


def probe_identity(request: Facts) -> Facts:
    """Say which machine and which network this is, and who we are on it."""
    del request
    return {
        "hostname": os.uname().nodename,
        "user": user_name(os.getuid()),
        "uid": os.getuid(),
        "boot_id": read_text("/proc/sys/kernel/random/boot_id"),
        "machine_id": read_text("/etc/machine-id") or read_text("/var/lib/dbus/machine-id"),
        # Two containers of one machine share the boot id but not the network.
        "network_id": _namespace("net"),
        "kernel": os.uname().release,
        "os": parse_os_release(read_text("/etc/os-release")),
        "control_python": sys.executable,
        "control_version": ".".join(str(part) for part in sys.version_info[:3]),
    }


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


def parse_os_release(text: str) -> str:
    """Take the readable name out of /etc/os-release."""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip("\"'")
    return ""


def probe_machine(request: Facts) -> Facts:
    """Count what the ranks can use: cores by affinity, memory within the cgroup's limit, /dev/shm."""
    del request
    memory = parse_meminfo(read_text("/proc/meminfo"))
    limit = cgroup_memory_limit(read_text("/proc/self/cgroup"))
    total = memory.get("MemTotal", 0)
    facts: Facts = {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(min(total, limit or total) / GIB, 2),
        "memory_free_gib": round(memory.get("MemAvailable", 0) / GIB, 2),
        "memory_limit_gib": None if limit is None or limit >= total else round(limit / GIB, 2),
    }
    try:
        shm = os.statvfs(SHM)
        facts["shm_gib"] = round(shm.f_frsize * shm.f_bavail / GIB, 3)
    except OSError as error:
        facts["unknown"] = {"shm": f"{SHM}: {error.strerror}"}
    return facts


def parse_meminfo(text: str) -> Dict[str, int]:
    """Turn /proc/meminfo into bytes by name."""
    sizes: Dict[str, int] = {}
    for line in text.splitlines():
        name, _, figure = line.partition(":")
        size = figure.split()[:1]
        if size and size[0].isdigit():
            sizes[name] = int(size[0]) * 1024
    return sizes


def cgroup_memory_limit(text: str, root: str = cgroups.ROOT) -> Optional[int]:
    """Find the smallest memory limit along the cgroup path of this process; None where there is none."""
    values = cgroups.read_along(text, "memory", "memory.max", "memory.limit_in_bytes", root)
    # Version 1 writes "no limit" as a huge number.
    limits = [int(value) for value in values if value.isdigit() and int(value) < 1 << 60]
    return min(limits, default=None)


def probe_limits(request: Facts) -> Facts:
    """Read the limits of this very session, which are the ranks'."""
    del request
    kinds = {
        "nofile": resource.RLIMIT_NOFILE,
        "nofile_hard": resource.RLIMIT_NOFILE,
        "memlock": getattr(resource, "RLIMIT_MEMLOCK", None),
        "memlock_hard": getattr(resource, "RLIMIT_MEMLOCK", None),
        "nproc": getattr(resource, "RLIMIT_NPROC", None),
        "nproc_hard": getattr(resource, "RLIMIT_NPROC", None),
    }
    limits: Dict[str, int] = {}
    for name, kind in kinds.items():
        if kind is not None:
            value = resource.getrlimit(kind)[name.endswith("_hard")]
            limits[name] = -1 if value == resource.RLIM_INFINITY else value
    return {"limits": limits}


def probe_rsync(request: Facts) -> Facts:
    """Find rsync as a non-interactive session would."""
    del request
    return {"rsync": find_program("rsync")}
