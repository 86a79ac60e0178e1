"""Checks of the machine under the session: load, kernel log, stuck processes, switches of the kernel."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, ok, skip, tell_age, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.facts.system import KernelTrouble
from orchestrator.settings import Settings
from orchestrator.values import Node

HOUR_S = 3600.0
STRICT_OVERCOMMIT = 2
SLOW_GOVERNORS = ("powersave", "conservative")
SELF_DRIVEN = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Their powersave is the normal one and comes up by itself."""


def check_load(nodes: Sequence[Node], facts: Sequence[Facts], settings: Settings) -> list[Seen]:
    """Nobody else keeps the processors busy."""
    shares = [_share(fact) for fact in facts]
    known = [share for share in shares if share is not None]
    usual = statistics.median_low(known) if known else 0.0
    most = threshold(settings, "load", "warn_per_core")
    seen: list[Seen] = []
    for node, fact, share in zip(nodes, facts, shares, strict=True):
        if share is None:
            seen.append(unknown(fact.why_unknown("system.load") or "not told"))
            continue
        told = f"load {fact.system.load1:.1f} on {fact.system.cores} cores"
        named = sum(one.cores for one in fact.system.busy or ()) > most * (fact.system.cores or 1)
        # Whose work cannot be seen, from within a container, may be the load of the moment before on every node.
        hidden = not fact.system.busy and share > 2 * usual and len(facts) > 1
        if share > most and (named or hidden):
            look = on_node(node, "ps axo pid,user,pcpu,etime,args --sort=-pcpu | head -n 5")
            seen.append(warn(f"{told}: {_name_busy(fact)}", look))
        else:
            seen.append(ok(told))
    return seen


def _name_busy(fact: Facts) -> str:
    names = [f"pid {one.pid} ({one.owner}: {one.command}) {one.cores:.1f} cores" for one in fact.system.busy or ()]
    return ", ".join(names[:3]) or "of processes that cannot be seen from here"


def _share(fact: Facts) -> float | None:
    if fact.system.load1 is None or not fact.system.cores:
        return None
    return fact.system.load1 / fact.system.cores


def check_kernel_log(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The kernel has told of no trouble with memory, disks or file systems of late."""
    if facts.system.troubles is None:
        why = facts.why_unknown("system.troubles") or "not told"
        if "journal" not in why or "no journalctl" in why:
            return unknown(why)
        return unknown(why, on_node(node, f"sudo usermod -aG adm {shlex.quote(facts.user or 'USER')}", terminal=True))
    # A run that took too much memory tells nothing of the next one for long; a disk does.
    windows = {"memory": HOUR_S * threshold(settings, "kernel-log", "memory_hours"), "denied": 0.0}
    usual_s = HOUR_S * threshold(settings, "kernel-log", "warn_hours")
    fresh = [one for one in facts.system.troubles if (one.age_s or 0.0) < windows.get(one.kind, usual_s)]
    if fresh:
        told = "; ".join(f"{one.kind}: {one.text} ({_tell_count(one)})" for one in fresh)
        return warn(told, on_node(node, "sudo dmesg -T | tail -n 50", terminal=True))
    return ok("no trouble of late")


def _tell_count(trouble: KernelTrouble) -> str:
    if trouble.age_s is None:
        return f"{trouble.count} such"
    ago = tell_age(trouble.age_s)
    return ago if trouble.count == 1 else f"{trouble.count} such, the last {ago}"


def check_stuck(node: Node, facts: Facts, settings: Settings) -> Seen:
    """No process hangs inside the kernel."""
    del settings
    if facts.system.stuck is None:
        return unknown(facts.why_unknown("system.stuck") or "not told")
    if facts.system.stuck:
        told = ", ".join(f"pid {one.pid} ({one.command}) waits in {one.waits_in}" for one in facts.system.stuck[:4])
        return warn(told, on_node(node, "ps axo pid,stat,wchan:32,args | awk '$2 ~ /^D/'"))
    return ok("none")


def check_selinux(node: Node, facts: Facts, settings: Settings) -> Seen:
    """SELinux and AppArmor deny nothing to sshd, python or rsync."""
    window_s = HOUR_S * threshold(settings, "selinux", "warn_hours")
    told = [one for one in facts.system.troubles or () if one.kind == "denied" and (one.age_s or 0.0) < window_s]
    denied = next(iter(told), None)
    if denied is not None and "apparmor" in denied.text:
        look = on_node(node, "sudo aa-status; sudo dmesg -T | grep DENIED | tail -n 5", terminal=True)
        return warn(f"{denied.text} ({denied.count} such)", look)
    if denied is not None:
        look = on_node(node, "sudo restorecon -R ~/.aorta ~/.ssh; sudo ausearch -m avc -ts recent", terminal=True)
        return warn(f"{denied.text} ({denied.count} such)", look)
    if facts.system.troubles is None and facts.system.selinux == "enforcing":
        return unknown(f"SELinux is enforcing: {facts.why_unknown('system.troubles') or 'its denials are not told'}")
    if facts.system.troubles is None:
        return skip("no SELinux that enforces, and denials of AppArmor are not ours to read")
    return ok(f"no denial, SELinux is {facts.system.selinux}" if facts.system.selinux else "no denial, no SELinux")


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
        name="load",
        looks_at="load average, and who makes it",
        why="the busiest node sets the pace",
        warns="above {warn_per_core:g} a core by processes that are named, or unseen and twice what the other nodes have",
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
        looks_at="what the kernel has told of memory, disks, file systems and hardware",
        why="what has just failed fails again in the run",
        warns="trouble within {warn_hours:g} h; out of memory within {memory_hours:g} h",
        each=check_kernel_log,
    ),
    Check(
        name="selinux",
        looks_at="denials of SELinux and AppArmor for sshd, python and rsync",
        why="a start or a push would be refused without a word",
        warns="some within {warn_hours:g} h",
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
