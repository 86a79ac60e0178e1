"""Checks of the machine under the session: load, mounts, kernel log, stuck processes, switches of the kernel."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.settings import Settings
from orchestrator.values import Node

HOUR_S = 3600.0
STRICT_OVERCOMMIT = 2
SLOW_GOVERNORS = ("powersave", "conservative")
SELF_DRIVEN = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Their powersave is the normal one and comes up by itself."""


def check_load(nodes: Sequence[Node], facts: Sequence[Facts], settings: Settings) -> list[Seen]:
    """Nobody else keeps the processors busy, seen against the other nodes."""
    shares = [_share(fact) for fact in facts]
    known = [share for share in shares if share is not None]
    usual = statistics.median_low(known) if known else 0.0
    most = max(threshold(settings, "load", "warn_per_core"), 2 * usual)
    seen: list[Seen] = []
    for node, fact, share in zip(nodes, facts, shares, strict=True):
        if share is None:
            seen.append(unknown(fact.why_unknown("system") or "not told"))
        elif share > most and len(facts) > 1:
            look = on_node(node, "ps axo pid,user,pcpu,etime,args --sort=-pcpu | head -n 5")
            seen.append(warn(f"load {fact.system.load1:.1f} on {fact.system.cores} cores", look))
        else:
            seen.append(ok(f"load {fact.system.load1:.1f} on {fact.system.cores} cores"))
    return seen


def _share(fact: Facts) -> float | None:
    if fact.system.load1 is None or not fact.system.cores:
        return None
    return fact.system.load1 / fact.system.cores


def check_mounts(node: Node, facts: Facts, settings: Settings) -> Seen:
    """HOME and the working directory can be written, and what lies there can be executed."""
    del settings
    if not facts.system.mounts:
        return unknown(facts.why_unknown("system.mounts") or "not told")
    closed = next((one for one in facts.system.mounts if one.read_only), None)
    if closed is not None:
        remedy = on_node(node, f"sudo mount -o remount,rw {shlex.quote(closed.mount)}", terminal=True)
        return fail(f"{closed.role} {closed.path} is mounted read-only ({closed.mount})", remedy)
    inert = next((one for one in facts.system.mounts if one.noexec), None)
    if inert is not None:
        remedy = on_node(node, f"sudo mount -o remount,exec {shlex.quote(inert.mount)}", terminal=True)
        return warn(f"nothing may be executed at {inert.role} {inert.path} ({inert.mount} is noexec)", remedy)
    return ok("read-write")


def check_kernel_log(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The kernel has told of no trouble with memory, disks or file systems of late."""
    if facts.system.troubles is None:
        why = facts.why_unknown("system.troubles") or facts.why_unknown("system") or "not told"
        return unknown(why, on_node(node, f"sudo usermod -aG adm {shlex.quote(facts.user or 'USER')}", terminal=True))
    window_s = HOUR_S * threshold(settings, "kernel-log", "warn_hours")
    fresh = [one for one in facts.system.troubles if one.kind != "denied" and (one.age_s or 0.0) < window_s]
    if fresh:
        told = "; ".join(f"{one.kind}: {one.text} ({one.count} such)" for one in fresh)
        return warn(told, on_node(node, "sudo dmesg -T | tail -n 50", terminal=True))
    return ok("no trouble of late")


def check_stuck(node: Node, facts: Facts, settings: Settings) -> Seen:
    """No process hangs inside the kernel."""
    del settings
    if facts.system.stuck is None:
        return unknown(facts.why_unknown("system") or "not told")
    if facts.system.stuck:
        told = ", ".join(f"pid {one.pid} ({one.command}) waits in {one.waits_in}" for one in facts.system.stuck[:4])
        return warn(told, on_node(node, "ps axo pid,stat,wchan:32,args | awk '$2 ~ /^D/'"))
    return ok("none")


def check_selinux(node: Node, facts: Facts, settings: Settings) -> Seen:
    """SELinux denies nothing to sshd, python or rsync."""
    del settings
    denied = next((one for one in facts.system.troubles or () if one.kind == "denied"), None)
    if denied is not None:
        look = on_node(node, "sudo restorecon -R ~/.aorta ~/.ssh; sudo ausearch -m avc -ts recent", terminal=True)
        return warn(f"{denied.text} ({denied.count} such)", look)
    return ok(f"SELinux is {facts.system.selinux}" if facts.system.selinux else "no SELinux")


def check_reboot(node: Node, facts: Facts, settings: Settings) -> Seen:
    """No upgrade waits for a reboot."""
    del settings
    if facts.why_unknown("system"):
        return unknown(facts.why_unknown("system"))
    if facts.system.reboot:
        return warn(f"a reboot is due for {facts.system.reboot}", on_node(node, "sudo reboot", terminal=True))
    return ok("none is due")


def check_overcommit(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Large processes may fork."""
    del settings
    if facts.system.overcommit is None:
        return unknown(facts.why_unknown("system") or "not told")
    if facts.system.overcommit == STRICT_OVERCOMMIT:
        remedy = on_node(node, "sudo sysctl -w vm.overcommit_memory=0", terminal=True)
        return warn("vm.overcommit_memory is 2", remedy)
    return ok(f"vm.overcommit_memory is {facts.system.overcommit}")


def check_shm_stale(node: Node, facts: Facts, settings: Settings) -> Seen:
    """No run that was killed has left files in /dev/shm."""
    if facts.system.stale_shm is None:
        return unknown(facts.why_unknown("system.shm") or "not told")
    files = facts.system.stale_shm
    if facts.system.stale_shm_gib > threshold(settings, "shm-stale", "warn_gib"):
        remedy = on_node(node, "rm " + " ".join(shlex.quote(path) for path in files))
        return warn(f"{len(files)} of your files, {facts.system.stale_shm_gib:.2f} GiB, that nobody holds", remedy)
    return ok(f"{len(files)} small files that nobody holds" if files else "none")


def check_swap(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Memory is not paged out."""
    used = facts.system.swap_used_gib
    if used is None:
        return unknown(facts.why_unknown("system") or "not told")
    if used > threshold(settings, "swap", "warn_gib"):
        return warn(f"{used:.1f} GiB are paged out", on_node(node, "sudo swapoff -a && sudo swapon -a", terminal=True))
    return ok(f"{used:.1f} GiB are paged out" if used else "nothing is paged out")


def check_numa_balancing(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The kernel does not move memory away from under GPUs of AMD."""
    del settings
    if facts.gpu_kind != "amd":
        return skip("no GPU of AMD")
    if facts.system.numa_balancing is None:
        return unknown("not told")
    if facts.system.numa_balancing:
        remedy = on_node(node, "sudo sysctl -w kernel.numa_balancing=0", terminal=True)
        return warn("kernel.numa_balancing is 1", remedy)
    return ok("kernel.numa_balancing is 0")


def check_governor(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The processors are not told to be slow."""
    del settings
    governor, driver = facts.system.governor, facts.system.scaling_driver
    if not governor:
        return skip("the machine does not scale, or does not tell")
    if governor in SLOW_GOVERNORS and driver not in SELF_DRIVEN:
        command = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
        return warn(f"{governor} ({driver})", on_node(node, command, terminal=True))
    return ok(f"{governor} ({driver})")


CHECKS = (
    Check(
        name="mounts",
        looks_at="how HOME and the working directory are mounted",
        why="nothing could be written, or a virtual environment there could not run",
        fails="one is read-only",
        warns="one is noexec",
        each=check_mounts,
    ),
    Check(
        name="load",
        looks_at="load average of every node",
        why="the busiest node sets the pace",
        warns="above {warn_per_core:g} a core, and twice what the other nodes have",
        across=check_load,
    ),
    Check(
        name="stuck",
        looks_at="processes that wait inside a driver or a file system",
        why="ranks would hang there too, and cannot be killed",
        warns="there are some",
        each=check_stuck,
    ),
    Check(
        name="kernel-log",
        looks_at="what the kernel has told of memory, disks and file systems",
        why="what has just failed fails again in the run",
        warns="trouble within {warn_hours:g} h",
        each=check_kernel_log,
    ),
    Check(
        name="selinux",
        looks_at="denials of SELinux for sshd, python and rsync",
        why="a start or a push would be refused without a word",
        warns="there are some",
        each=check_selinux,
    ),
    Check(
        name="reboot",
        looks_at="/run/reboot-required",
        why="libraries and kernel modules of two versions do not fit",
        warns="it is there",
        each=check_reboot,
    ),
    Check(
        name="overcommit",
        looks_at="vm.overcommit_memory",
        why="a large process cannot fork its data loaders",
        warns="it is 2",
        each=check_overcommit,
    ),
    Check(
        name="shm-stale",
        looks_at="old files of yours in /dev/shm",
        why="they take the memory that data loaders and NCCL need",
        warns="more than {warn_gib:g} GiB that nobody holds",
        each=check_shm_stale,
    ),
    Check(
        name="swap",
        looks_at="memory that is paged out",
        why="a rank that waits for the disk holds up all others",
        warns="more than {warn_gib:g} GiB",
        each=check_swap,
    ),
    Check(
        name="numa-balancing",
        looks_at="kernel.numa_balancing beside GPUs of AMD",
        why="RCCL loses much of its speed",
        warns="it is 1",
        each=check_numa_balancing,
    ),
    Check(
        name="governor",
        looks_at="frequency governor of the processors",
        why="data loaders and launches of kernels are slow",
        warns="powersave or conservative where the hardware does not decide by itself",
        each=check_governor,
    ),
)
