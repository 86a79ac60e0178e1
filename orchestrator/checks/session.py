"""Checks of what the SSH session may do and for how long, and of the places where the run writes."""

from __future__ import annotations

import shlex

from orchestrator.checks.check import Check
from orchestrator.checks.hardware import usable_gpus, wanted_processes
from orchestrator.checks.remedies import install, on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.settings import Settings
from orchestrator.values import Node

LONGEST_SOCKET = 107
LISTENER = len("/pymp-xxxxxxxx/listener-xxxxxxxx")
"""What multiprocessing puts behind the folder for temporary files."""
MIB = 1 << 20


def check_memlock(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Enough memory may be locked in this very session."""
    limit = (facts.limits or {}).get("memlock")
    if limit is None:
        return unknown(facts.why_unknown("limits") or "not told")
    if limit < 0:
        return ok("without limit")
    seen = f"{limit // MIB} MiB may be locked"
    if not any(port.active for port in facts.rdma.ports or ()):
        return ok(f"{seen}, no RDMA port needs it")
    line = f"{facts.user or '*'} - memlock unlimited"
    remedy = on_node(node, f"echo '{line}' | sudo tee /etc/security/limits.d/90-memlock.conf", terminal=True)
    worse = fail if limit < threshold(settings, "memlock", "fail_mib") * MIB else warn
    return worse(f"{seen}, and there are RDMA ports", remedy)


def check_processes(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Enough processes and threads may be started."""
    limit = (facts.limits or {}).get("nproc")
    if limit is None:
        return unknown(facts.why_unknown("limits") or "not told")
    least = threshold(settings, "processes", "warn_free")
    free = facts.session.pids_free
    if free is not None and free < least:
        look = on_node(node, "cat /proc/self/cgroup; systemctl show user.slice -p TasksMax")
        return warn(f"a control group allows {free} more processes", look)
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
        keep = "printf '[Login]\\nKillUserProcesses=no\\n' | sudo tee /etc/systemd/logind.conf.d/90-keep.conf"
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
    # The user counts as logged out as soon as no session and no lingering manager is left.
    leaves = facts.session.kill_at_logout or facts.session.user_scope
    if facts.session.remove_ipc and leaves and facts.user != "root" and not facts.session.linger:
        remedy = on_node(node, f"sudo loginctl enable-linger {shlex.quote(facts.user)}", terminal=True)
        return warn("logind removes your files in /dev/shm when you log out (RemoveIPC=yes)", remedy)
    return ok("it stays while a process of yours lives")


def check_tmp(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The folder for temporary files can be used."""
    tmp = facts.session.temporary
    if tmp is None:
        return unknown(facts.why_unknown("session") or "not told")
    path = shlex.quote(tmp.path)
    if tmp.exists is False:
        return fail(f"TMPDIR={tmp.path} is not there", on_node(node, f"mkdir -p {path}"))
    if tmp.writable is False:
        return fail(f"{tmp.path} cannot be written", on_node(node, f"sudo chmod 1777 {path}", terminal=True))
    look = on_node(node, f"df -h {path}")
    seen = f"{tmp.free_gib or 0:.2f} GiB free at {tmp.path}"
    free_gib = float("inf") if tmp.free_gib is None else tmp.free_gib
    if tmp.noexec and free_gib >= threshold(settings, "tmp", "fail_gib"):
        remount = on_node(node, f"sudo mount -o remount,exec {path}", terminal=True)
        return warn(f"nothing may be executed at {tmp.path}: what torch.compile and Triton build there", remount)
    if free_gib < threshold(settings, "tmp", "warn_gib"):
        return (fail if free_gib < threshold(settings, "tmp", "fail_gib") else warn)(seen, look)
    return ok(seen)


def check_socket_path(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Sockets of data loader workers fit below the folder for temporary files."""
    del settings
    tmp = facts.session.temporary
    if tmp is None:
        return unknown(facts.why_unknown("session") or "not told")
    length = len(tmp.path.encode()) + LISTENER
    if length > LONGEST_SOCKET:
        told = f"TMPDIR has {len(tmp.path)} characters: a socket below it would have {length} of {LONGEST_SOCKET}"
        return warn(
            told, f"--env TMPDIR=/tmp; it comes from: {on_node(node, 'grep -s TMPDIR ~/.bashrc /etc/environment')}"
        )
    return ok(f"{length} of {LONGEST_SOCKET} characters")


def check_run_folder(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Our folder in HOME is one, or can be made."""
    del settings
    kind = facts.session.run_folder
    if not kind:
        return unknown(facts.why_unknown("session") or "not told")
    if kind in ("folder", "missing"):
        return ok("it is there" if kind == "folder" else "it will be made")
    return fail(f"~/.aorta is {kind}", on_node(node, "mv ~/.aorta ~/.aorta.old"))


def check_supervisor(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The kernel and the Python that run our own programs have what they need."""
    del settings
    if not facts.kernel:
        return unknown(facts.why_unknown("identity") or "not told")
    figures = tuple(int(part) for part in facts.kernel.split("-")[0].split(".")[:2] if part.isdigit())
    if figures < (5, 3):
        newer = "sudo apt-get install -y linux-image-amd64 && sudo reboot"
        return fail(f"kernel {facts.kernel} is older than 5.3", on_node(node, newer, terminal=True))
    if facts.session.missing_modules:
        names = ", ".join(facts.session.missing_modules)
        remedy = on_node(node, install(facts, "python3"), terminal=True)
        return fail(f"{facts.control_python} has no {names}", remedy)
    return ok(f"kernel {facts.kernel}, Python {facts.control_version}")


def check_commands(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Programs that the run requires are on the PATH."""
    if not settings.require_commands:
        return skip("launch.require_commands names none")
    if facts.why_unknown("session"):
        return unknown(facts.why_unknown("session"))
    missing = [name for name in settings.require_commands if not facts.session.commands.get(name)]
    if missing:
        remedy = on_node(node, install(facts, " ".join(shlex.quote(name) for name in missing)), terminal=True)
        return fail(f"not on the PATH: {', '.join(missing)}", remedy)
    return ok(", ".join(facts.session.commands[name] for name in settings.require_commands))


CHECKS = (
    Check(
        name="run-folder",
        looks_at="~/.aorta, where a run keeps its state and logs",
        why="the supervisor could not make its run folder",
        fails="it is something else than a folder of yours",
        each=check_run_folder,
    ),
    Check(
        name="supervisor",
        looks_at="kernel, and modules of the Python that runs our own programs",
        why="the supervisor would not start",
        fails="the kernel is older than 5.3, or a module is missing",
        each=check_supervisor,
    ),
    Check(
        name="commands",
        looks_at="launch.require_commands",
        why="a rank would fail when it calls one",
        fails="one is not on the PATH",
        each=check_commands,
    ),
    Check(
        name="tmp",
        looks_at="TMPDIR, else /tmp",
        why="torch.compile, data loaders and caches write there",
        fails="it is missing, cannot be written, or has less than {fail_gib:g} GiB",
        warns="nothing may be executed there, or less than {warn_gib:g} GiB",
        each=check_tmp,
    ),
    Check(
        name="socket-path",
        looks_at="length of TMPDIR",
        why="data loader workers end with: AF_UNIX path too long",
        warns="a socket below it would be longer than 107 characters",
        each=check_socket_path,
    ),
    Check(
        name="memlock",
        looks_at="memory that this session may lock",
        why="NCCL cannot register memory with RDMA devices",
        fails="less than {fail_mib:g} MiB, and there are RDMA ports",
        warns="limited, and there are RDMA ports",
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
        looks_at="logind: RemoveIPC",
        why="data loaders lose their shared memory in the middle of a run",
        warns="shared memory is removed at log-out",
        each=check_remove_ipc,
    ),
)
