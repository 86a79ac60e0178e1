"""The machine under the session: mounts, what the kernel has told, switches of the kernel, what lies in shared memory."""

from __future__ import annotations

import os
import time

from orchestrator.node import kernel_log, processes
from orchestrator.node.probe_command import read_text
from orchestrator.node.probe_disk import existing_parent
from orchestrator.node.probe_host import parse_meminfo
from orchestrator.node.probe_places import find_mount, list_mounts, read_mounts

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

    Facts = Dict[str, Any]

GIB = float(1 << 30)
SHM = "/dev/shm"  # noqa: S108 - it is looked at, nothing is written
OURS = ("torch_", "nccl-", "sem.", "psm_", "cuda.shm.", "gloo")
STALE_S = 600.0
"""A file that is being made has no holder for a moment; one so old has none any more."""
OUT_OF_MEMORY = ("Out of memory: Killed process", "oom-kill:", "Memory cgroup out of memory")
MARKS = (
    *(words.encode() for words in OUT_OF_MEMORY),
    *(b"I/O error", b"critical medium error", b"critical target error", b"failed command", b"exception Emask"),
    *(b"timeout", b"is down", b"resetting controller", b"Abort status"),
    *(
        b"EXT4-fs error",
        b"Shutting down",
        b"Corruption",
        b"metadata I/O",
        b"BTRFS",
        b"Remounting filesystem read-only",
        b"nfs: server",
        b"Lustre",
    ),
    *(b"[Hardware Error]", b"EDAC", b"AER: Uncorrected (Fatal)", b"avc: ", b'apparmor="DENIED"'),
    *(b"soft lockup", b"hard LOCKUP", b"self-detected stall", b"blocked for more than"),
)
"""No trouble's pattern fits a text without one of them."""
TROUBLES = (
    (
        "disk",
        (
            r"I/O error|critical (medium|target) error|nvme.*(I/O.*timeout|timeout, (reset|abort|disable)|is down"
            r"|resetting controller|Abort status)|ata[\d.]+: .*(failed command|exception Emask)"
        ),
    ),
    (
        "file system",
        (
            r"EXT4-fs error|XFS.*(Shutting down|Corruption|metadata I/O)|BTRFS.*(error|critical)"
            r"|Remounting filesystem read-only"
        ),
    ),
    ("network file system", r"nfs: server .* not responding|Lustre.*(timed out|Connection .* lost)"),
    (
        "hardware",
        (
            r"\[Hardware Error\].*(severity: (fatal|recoverable)|Uncorrected|context corrupt|\|UE\|)"
            r"|EDAC .*\bUE\b|AER: Uncorrected \(Fatal\)"
        ),
    ),
    ("stall", r"soft lockup|hard LOCKUP|self-detected stall|blocked for more than \d+ seconds"),
    (
        "denied",
        r"avc: +denied .*(sshd|python|rsync)|apparmor=\"DENIED\".*(profile|comm)=\"[^\"]*(sshd|python|rsync)",
    ),
)
HARMLESS = r"\b(fd|sr|loop)\d+\b"
"""An empty drive and a removed image complain too."""


def probe_system(request: Facts) -> Facts:
    """Read the state of the machine; each part that cannot be read is left out."""
    del request
    memory = parse_meminfo(read_text("/proc/meminfo"))
    swapped = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
    facts: Facts = {
        "uptime_s": round(time.clock_gettime(time.CLOCK_BOOTTIME), 1),
        "selinux": {"1": "enforcing", "0": "permissive"}.get(read_text("/sys/fs/selinux/enforce"), ""),
        "reboot": read_reboot(),
        "overcommit": whole("/proc/sys/vm/overcommit_memory"),
        "swap_used_gib": round(swapped / GIB, 2) if "SwapTotal" in memory else None,
        "numa_balancing": whole("/proc/sys/kernel/numa_balancing"),
        "governor": read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "scaling_driver": read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"),
    }
    return {"system": facts}


def probe_kernel_log(request: Facts) -> Facts:
    """Say what trouble the kernel has told of since boot, or why that cannot be read."""
    del request
    troubles, why = read_troubles()
    return {"unknown": {"system.troubles": why}} if why else {"system": {"troubles": troubles}}


def whole(path: str) -> Optional[int]:
    """Read a whole number of the kernel; None where there is none."""
    text = read_text(path)
    return int(text) if text[text.startswith("-") :].isdecimal() else None


def read_reboot() -> str:
    """Say what waits for a reboot, as Debian and Ubuntu note it."""
    if not os.path.exists("/run/reboot-required"):
        return ""
    packages = sorted(set(read_text("/run/reboot-required.pkgs").split()))
    return ", ".join(packages[:6]) or "a package"


def probe_mounts(request: Facts) -> Facts:
    """Say how the places of the run are mounted."""
    options = mount_options(read_mounts())
    places = {"HOME": os.path.expanduser("~"), "workdir": os.path.expanduser(str(request.get("workdir") or "~"))}
    found = []
    for role, named in places.items():
        path = existing_parent(named)
        mount = find_mount(os.path.realpath(path), list_mounts())[1]
        words = options.get(mount, [])
        found.append(
            {"role": role, "path": path, "mount": mount, "read_only": "ro" in words, "noexec": "noexec" in words}
        )
    return {"system": {"mounts": found}}


def mount_options(text: str) -> Dict[str, List[str]]:
    """Turn /proc/mounts into the options of each mount point, the last mounted last."""
    found: Dict[str, List[str]] = {}
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) > 3:  # noqa: PLR2004 - source, mount point, type, options
            found[words[1].replace("\\040", " ")] = words[3].split(",")
    return found


def is_worth_reading(part: bytes) -> bool:
    """Tell whether a record of the kernel may be one of trouble; most are of the level "info", which never is."""
    return not part.startswith((b"6,", b"7,")) and any(mark in part for mark in MARKS)


def read_troubles() -> Tuple[List[Facts], str]:
    """Read what the kernel has told of memory, disks and file systems; or why it cannot be read."""
    lines, why = kernel_log.read_lines(is_worth_reading)
    return fold_troubles(lines, time.clock_gettime(time.CLOCK_MONOTONIC)), why


def fold_troubles(lines: Iterable[Tuple[float, str]], now: float) -> List[Facts]:
    """Keep the last line of each kind, its age, and how many there were."""
    found: Dict[str, Facts] = {}
    for moment, text in lines:
        kind = kind_of_trouble(text)
        if kind:
            count = found.get(kind, {}).get("count", 0) + 1
            found[kind] = {"kind": kind, "age_s": round(max(0.0, now - moment), 1), "text": text[:200], "count": count}
    return list(found.values())


def kind_of_trouble(text: str) -> str:
    """Name what a line of the kernel tells of; empty when it is no trouble."""
    if any(words in text for words in OUT_OF_MEMORY):
        return "memory"
    import re  # noqa: PLC0415 - these patterns cost as much as a start of Python, and most nodes need none

    kind = next((name for name, pattern in TROUBLES if re.search(pattern, text)), "")
    return "" if kind == "disk" and re.search(HARMLESS, text) else kind


def probe_shm(request: Facts) -> Facts:
    """List old files of ours in /dev/shm that no process holds: what a killed run leaves."""
    del request
    old = {}
    for entry in os.scandir(SHM):
        if entry.name.startswith(OURS):
            state = entry.stat(follow_symlinks=False)
            if state.st_uid == os.getuid() and time.time() - state.st_mtime > STALE_S:
                old[entry.path] = state.st_blocks * 512
    held = _held(set(old)) if old else set()
    stale = sorted(path for path in old if path not in held)
    size_gib = round(sum(old[path] for path in stale) / GIB, 3)
    return {"system": {"stale_shm": stale[:50], "stale_shm_gib": size_gib}}


def _held(paths: Set[str]) -> Set[str]:
    """Find those of some files that a process of ours has mapped or open."""
    held: Set[str] = set()
    for pid in processes.all_pids():
        text = read_text(f"/proc/{pid}/maps", 1 << 24)
        held |= {path for path in paths if path in text}
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                held.add(os.readlink(f"/proc/{pid}/fd/{name}"))
            except OSError:
                continue  # closed in the meantime
    return held
