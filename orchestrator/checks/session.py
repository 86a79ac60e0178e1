"""Checks of what the SSH session may do and for how long."""

from __future__ import annotations

import shlex

from orchestrator.checks.check import Check
from orchestrator.checks.gpu_view import why_unused
from orchestrator.checks.hardware import usable_gpus, wanted_processes
from orchestrator.checks.remedies import install, on_node
from orchestrator.checks.seen import Seen, fail, ok, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.settings import Settings
from orchestrator.values import Node

MIB = 1 << 20


def limit_of(facts: Facts, name: str) -> int | None:
    """Give a limit as the ranks will have it, which the agent raises to the hard one; -1 is none."""
    limits = facts.limits or {}
    return limits.get(f"{name}_hard", limits.get(name))


def check_memlock(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Enough memory may be locked in this very session."""
    limit = limit_of(facts, "memlock")
    if limit is None:
        return unknown(facts.why_unknown("limits") or "not told")
    if limit < 0:
        return ok("without limit")
    seen = f"{limit // MIB} MiB may be locked"
    # Without GPUs collectives go over TCP: a virtual machine may have an RDMA port that nobody uses.
    if why_unused(facts, settings) is not None or not facts.rdma.active:
        return ok(f"{seen}, no RDMA port needs it")
    line = f"{facts.user or '*'} - memlock unlimited"
    remedy = on_node(node, f"echo '{line}' | sudo tee /etc/security/limits.d/90-memlock.conf", terminal=True)
    worse = fail if limit < threshold(settings, "memlock", "fail_mib") * MIB else warn
    return worse(f"{seen}, and there are RDMA ports", remedy)


def check_processes(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Enough processes and threads may be started."""
    limit = limit_of(facts, "nproc")
    free = facts.session.pids_free
    least = threshold(settings, "processes", "warn_free")
    if free is not None and free < least:
        look = on_node(node, "cat /proc/self/cgroup; systemctl show user.slice 'user-*.slice' -p TasksMax")
        return warn(f"a control group allows {free} more processes", look)
    if limit is None:
        return unknown(facts.why_unknown("limits") or "not told")
    if facts.user == "root":
        return ok("root may start any number")
    if 0 <= limit < least:
        line = f"{facts.user or '*'} - nproc 65536"
        remedy = on_node(node, f"echo '{line}' | sudo tee /etc/security/limits.d/90-nproc.conf", terminal=True)
        return warn(f"{limit} processes", remedy)
    return ok("processes without limit" if limit < 0 else f"{limit} processes")


def check_cpu_limit(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The session may use the cores that the machine has."""
    quota, online = facts.session.quota_cores, facts.session.cores_online
    if online is None:
        return unknown(facts.why_unknown("session") or "not told")
    processes = wanted_processes(node, facts, settings) or len(usable_gpus(node, facts)) or 1
    look = on_node(node, "cat /proc/self/cgroup; taskset -cp $$")
    allowed = min(facts.cores, quota if quota is not None else facts.cores)
    if allowed < processes:
        return warn(f"{allowed:g} of {online} cores for {processes} processes", look)
    if quota is not None and quota < facts.cores:
        return warn(f"a control group allows {quota:g} of {facts.cores} cores", look)
    return ok(f"{facts.cores} of {online} cores")


def check_logout(node: Node, facts: Facts, settings: Settings) -> Seen:
    """What runs goes on when the SSH session ends."""
    del settings
    if facts.session.kill_at_logout is None:
        why = facts.why_unknown("session")
        return unknown(why) if why else ok("no logind")
    if facts.session.kill_at_logout:
        keep = "printf '[Login]\\nKillUserProcesses=no\\n' | sudo tee /etc/systemd/logind.conf.d/zz-keep.conf"
        command = f"sudo mkdir -p /etc/systemd/logind.conf.d; {keep}; sudo systemctl restart systemd-logind"
        told = "logind ends every process of yours when you log out (KillUserProcesses=yes)"
        return warn(told, on_node(node, command, terminal=True))
    if facts.session.user_scope and not facts.session.linger:
        linger = on_node(node, f"sudo loginctl enable-linger {shlex.quote(facts.user)}", terminal=True)
        return warn("the session is a part of your service manager, which ends seconds after the last log-out", linger)
    return ok("processes stay after log-out")


def check_remove_ipc(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Shared memory of the run stays when the SSH session ends."""
    del settings
    if facts.session.remove_ipc is None:
        why = facts.why_unknown("session")
        return unknown(why) if why else ok("no logind")
    if not facts.session.remove_ipc or facts.session.linger:
        return ok("logind leaves it alone")
    # A user counts as logged in while a process is left in a session that logind knows.
    if facts.session.of_logind and not facts.session.kill_at_logout:
        return ok("it stays while a process of yours lives")
    remedy = on_node(node, f"sudo loginctl enable-linger {shlex.quote(facts.user)}", terminal=True)
    return warn("logind removes your files in /dev/shm when you log out (RemoveIPC=yes)", remedy)


def check_supervisor(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The kernel and the Python that run our own programs have what they need."""
    del settings
    trouble = facts.session.pidfd_trouble
    if trouble is None:
        return unknown(facts.why_unknown("session") or "not told")
    if trouble:
        what = f"kernel {facts.kernel} gives no handles of processes (pidfd_open: {trouble})"
        if facts.session.container:
            return fail(f"{what}, or the container forbids it", "docker run --security-opt seccomp=unconfined")
        kernel = "linux-generic" if "ubuntu" in facts.os.lower() else "linux-image-$(dpkg --print-architecture)"
        command = f"{install(facts, kernel)} && sudo reboot" if "apt-get" in install(facts, kernel) else "uname -a"
        return fail(f"{what}; Linux has them from 5.3 on", on_node(node, command, terminal=True))
    if facts.session.missing_modules:
        names = ", ".join(facts.session.missing_modules)
        remedy = on_node(node, install(facts, "python3"), terminal=True)
        return fail(f"{facts.control_python} has no {names}", remedy)
    where = f", in a container ({facts.session.container})" if facts.session.container else ""
    return ok(f"kernel {facts.kernel}, Python {facts.control_version}{where}")


CHECKS = (
    Check(
        name="supervisor",
        looks_at="handles of processes, and modules of the Python that runs our own programs",
        why="the supervisor would not start",
        fails="the kernel is older than 5.3, or a module is missing",
        each=check_supervisor,
    ),
    Check(
        name="memlock",
        looks_at="memory that this session may lock, which the agent asks for",
        why="NCCL cannot register memory with RDMA devices",
        fails="less than {fail_mib:g} MiB, and there are RDMA ports beside GPUs",
        warns="limited, and there are RDMA ports beside GPUs",
        each=check_memlock,
    ),
    Check(
        name="processes",
        looks_at="processes that this session may start",
        why="data loaders end with: can't start new thread",
        warns="fewer than {warn_free:g}",
        each=check_processes,
    ),
    Check(
        name="cpu-limit",
        looks_at="cores that control groups and affinity allow",
        why="ranks, data loaders and gloo starve each other",
        warns="a control group allows fewer than there are, or there are fewer than processes",
        each=check_cpu_limit,
    ),
    Check(
        name="logout",
        looks_at="logind: KillUserProcesses, linger, and where the session lies",
        why="a run would end when the launch host goes away",
        warns="processes are ended at log-out",
        each=check_logout,
    ),
    Check(
        name="remove-ipc",
        looks_at="logind: RemoveIPC, for users from 1000 on",
        why="data loaders lose their shared memory in the middle of a run",
        warns="shared memory is removed at log-out",
        each=check_remove_ipc,
    ),
)
