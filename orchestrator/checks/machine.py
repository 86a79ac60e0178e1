"""Checks of one machine: disk, memory, limits, names, what earlier runs left."""

from __future__ import annotations

import shlex

from orchestrator.checks.check import Check
from orchestrator.checks.hardware import usable_gpus, wanted_processes
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.node.agent import NOFILE
from orchestrator.settings import Settings
from orchestrator.values import Node


def check_disk(node: Node, facts: Facts, settings: Settings) -> Seen:
    """There is room where the run writes."""
    if facts.disk_free_gib is None:
        return unknown(facts.why_unknown("disk") or "not told")
    look = on_node(node, f"df -h {shlex.quote(facts.disk_path)}")
    seen = f"{facts.disk_free_gib:.1f} GiB free at {facts.disk_path}"
    least = threshold(settings, "disk", "fail_gib")
    if facts.disk_free_gib < least:
        return fail(f"{seen}, less than {least:g} GiB", f"{look}; or name another disk with --workdir")
    if facts.inodes_free is not None and 0 <= facts.inodes_free < threshold(settings, "disk", "fail_inodes"):
        return fail(f"{facts.inodes_free} inodes free at {facts.disk_path}", look.replace("df -h", "df -i"))
    if facts.disk_free_gib < threshold(settings, "disk", "warn_gib"):
        return warn(seen, look)
    return ok(seen)


def check_memory(node: Node, facts: Facts, settings: Settings) -> Seen:
    """There is memory for the processes to start."""
    if facts.memory_free_gib is None:
        return unknown(facts.why_unknown("machine") or "not told")
    processes = wanted_processes(node, facts, settings) or len(usable_gpus(node, facts)) or 1
    free = min(facts.memory_free_gib, facts.memory_limit_gib or facts.memory_free_gib)
    limit = f", {facts.memory_limit_gib:.1f} GiB for this session" if facts.memory_limit_gib else ""
    seen = f"{facts.memory_free_gib:.1f} GiB free{limit}"
    look = on_node(node, "ps axo rss,pid,user,comm --sort=-rss | head -n 5")
    if free < threshold(settings, "memory", "fail_gib") * (processes + 1):
        return fail(f"{seen}, too little for {processes} processes", look)
    if free < threshold(settings, "memory", "warn_gib") * processes:
        return warn(f"{seen} for {processes} processes", look)
    return ok(seen)


def check_shm(node: Node, facts: Facts, settings: Settings) -> Seen:
    """There is room in /dev/shm for data loaders and NCCL."""
    if facts.shm_gib is None:
        return unknown(facts.why_unknown("shm") or facts.why_unknown("machine") or "not told")
    seen = f"{facts.shm_gib:.2f} GiB free in /dev/shm"
    if facts.shm_gib < threshold(settings, "shm", "warn_gib"):
        remedy = on_node(node, "sudo mount -o remount,size=8G /dev/shm", terminal=True)
        return warn(
            f"{seen}: data loader workers and NCCL may run out", f"{remedy}; in a container: docker run --shm-size 8g"
        )
    return ok(seen)


def check_nofile(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Enough files may be open in this very session."""
    limits = facts.limits or {}
    soft = limits.get("nofile")
    if soft is None:
        return unknown(facts.why_unknown("limits") or "not told")
    hard = limits.get("nofile_hard", soft)
    # The agent raises it for the ranks as far as it may, and no further than makes sense.
    nofile = soft if soft < 0 else max(soft, NOFILE if hard < 0 else min(hard, NOFILE))
    if 0 <= nofile < threshold(settings, "nofile", "warn_files"):
        line = f"{facts.user or '*'} - nofile 65536"
        remedy = on_node(node, f"echo '{line}' | sudo tee /etc/security/limits.d/90-nofile.conf", terminal=True)
        return warn(f"{nofile} open files", remedy)
    raised = f", raised from {soft}" if nofile > soft else ""
    return ok("open files without limit" if nofile < 0 else f"{nofile} open files{raised}")


def check_home(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The run folder can be made in HOME."""
    del settings
    if facts.home_writable is None:
        return unknown(facts.why_unknown("home") or "not told")
    if any(mount.read_only and mount.role == "HOME" for mount in facts.system.mounts):
        return skip("HOME is mounted read-only, see mounts")
    if not facts.home_writable:
        home = shlex.quote(facts.home)
        remedy = on_node(node, f"sudo install -d -o {shlex.quote(facts.user)} -m 755 {home}", terminal=True)
        return fail(f"{facts.home} cannot be written by {facts.user}", remedy)
    return ok(f"{facts.home} can be written")


def check_hostname(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The node's own name means something to it; the launcher itself relies on numeric addresses alone."""
    if facts.why_unknown("hostname"):
        return unknown(f"looking up {facts.hostname}: {facts.why_unknown('hostname')}")
    slow = threshold(settings, "hostname", "warn_s")
    if facts.hostname_s is not None and facts.hostname_s > slow:
        remedy = on_node(node, f"echo '127.0.1.1 {facts.hostname}' | sudo tee -a /etc/hosts", terminal=True)
        return warn(f"{facts.hostname_s:.1f} s to look up {facts.hostname}: a name server does not answer", remedy)
    if not facts.hostname_addresses:
        line = f"127.0.1.1 {facts.hostname}"
        remedy = on_node(node, f"echo '{line}' | sudo tee -a /etc/hosts", terminal=True)
        return warn(f"{facts.hostname} does not resolve; a script that looks up its own name would fail", remedy)
    shown = ", ".join(facts.hostname_addresses)
    if all(address.startswith("127.") or address == "::1" for address in facts.hostname_addresses):
        return ok(f"{facts.hostname} is {shown}: harmless, addresses and interfaces are given by number and name")
    return ok(f"{facts.hostname} is {shown}")


def check_interface(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The interface that the node list names exists and has an address."""
    del settings
    if not node.iface:
        return skip("none is named")
    if facts.why_unknown("addresses"):
        return unknown(facts.why_unknown("addresses"))
    held = [entry.address for entry in facts.addresses if entry.interface == node.iface]
    if held:
        return ok(f"{node.iface}: {', '.join(held)}")
    there = ", ".join(dict.fromkeys(entry.interface for entry in facts.addresses))
    return fail(
        f"iface={node.iface} has no address; there are {there}", f"correct iface= of {node.name} in the node list"
    )


def check_leftovers(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Nothing of an earlier run is still here."""
    del settings, node
    if facts.why_unknown("leftovers"):
        return unknown(facts.why_unknown("leftovers"))
    runs: dict[str, list[int]] = {}
    for leftover in facts.leftovers:
        if not leftover.supervised:
            runs.setdefault(leftover.run_id, []).append(leftover.pid)
    live = sorted({leftover.run_id for leftover in facts.leftovers if leftover.supervised})
    if not runs:
        # Runs may share a node; what of it they leave to others is told where it is looked at.
        return ok(f"none; {', '.join(live)} runs here as well" if live else "none")
    seen = "; ".join(
        f"run {run_id} has left processes: pid {', '.join(map(str, pids))}" for run_id, pids in runs.items()
    )
    return warn(seen, "; ".join(f"aorta-launch kill {shlex.quote(run_id)}" for run_id in runs))


PLACES = (
    Check(
        name="home",
        looks_at="HOME on the node, where the run folder is made",
        why="the supervisor could not make its run folder",
        fails="it cannot be written",
        each=check_home,
    ),
)
CHECKS = (
    Check(
        name="interface",
        looks_at="iface= of the node list",
        why="gloo and NCCL would find no address on it",
        fails="it has no address",
        each=check_interface,
    ),
    Check(
        name="hostname",
        looks_at="what the node's own name resolves to",
        why="a script that looks up its own name would fail",
        warns="it does not resolve, or only after {warn_s:g} s",
        each=check_hostname,
    ),
    Check(
        name="disk",
        headline=True,
        looks_at="free space of the working directory and of ~/.aorta",
        why="logs and checkpoints would be cut off",
        fails="less than {fail_gib:g} GiB or {fail_inodes:g} inodes free",
        warns="less than {warn_gib:g} GiB free",
        each=check_disk,
    ),
    Check(
        name="memory",
        headline=True,
        looks_at="free memory, within the session's limit",
        why="the kernel would kill a rank",
        fails="less than {fail_gib:g} GiB a process",
        warns="less than {warn_gib:g} GiB a process",
        each=check_memory,
    ),
    Check(
        name="shm",
        looks_at="free space in /dev/shm",
        why="data loader workers end with a bus error",
        warns="less than {warn_gib:g} GiB free",
        each=check_shm,
    ),
    Check(
        name="nofile",
        looks_at="open files that this very session may have, which the agent asks for",
        why="data loaders and large worlds run out of files",
        warns="fewer than {warn_files:g}",
        each=check_nofile,
    ),
    Check(
        name="leftovers",
        looks_at="processes that carry the id of a run whose supervisor is gone",
        why="they hold GPUs, memory and ports",
        warns="there are some",
        each=check_leftovers,
    ),
)
