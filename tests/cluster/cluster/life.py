"""Bringing nodes up and taking a whole cluster down, with nothing of it left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import files
from .programs import (
    ClusterError,
    find_pids_with_environ,
    find_program,
    kill_exactly,
    read_children,
    run,
    start_ticks,
    wait_for,
)
from .spec import Spec, read_state

Pids = dict[int, tuple[int, int, int]]
"""Node → its first process as this machine counts, that process's start ticks, the pid of what started it."""

NODE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CGROUPS = Path("/sys/fs/cgroup")


def up(spec: Spec) -> Pids:
    """Make and start every node; what fails half way is taken down by the caller."""
    spec.save({})
    files.write_launch_host(spec)
    files.write_fake_python(spec)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: files.write_node(spec, k), spec.numbers))
    files.write_known_hosts(spec)
    return start_with_namespaces(spec) if spec.namespaces else start_on_loopback(spec)


def start_with_namespaces(spec: Spec) -> Pids:
    """Start each node's first process, plug its cable in, and wait for its sshd."""
    bridge, inner, outer = f"{spec.tag}-br", f"{spec.tag}-h0", f"{spec.tag}-h1"
    ip_batch(
        [
            f"link add {bridge} type bridge",
            f"link set {bridge} up",
            f"link add {inner} type veth peer name {outer}",
            f"link set {outer} master {bridge}",
            f"link set {outer} up",
            f"addr add {spec.launch_address}/16 dev {inner}",
            f"link set {inner} up",
        ]
    )
    starters = {k: spawn_node(spec, k) for k in spec.numbers}
    pids: Pids = {}
    for k, starter in starters.items():
        wait_for(lambda s=starter: bool(read_children(s.pid)) or s.poll() is not None, 20, f"first process of node {k}")  # type: ignore[misc]
        children = read_children(starter.pid)
        if not children:
            raise ClusterError(f"node {k} did not come up: {read_logs(spec, k)}")
        first = children[0]
        pids[k] = (first, start_ticks(first) or 0, starter.pid)
        join_cgroup(spec, k, first)
    spec.save(pids)
    lines = []
    for k in spec.numbers:
        lines.append(f"link add {spec.interface(k)} type veth peer name eth0 netns {pids[k][0]}")
        lines.append(f"link set {spec.interface(k)} master {bridge}")
        lines.append(f"link set {spec.interface(k)} up")
    ip_batch(lines)
    for starter in starters.values():
        assert starter.stdin is not None
        starter.stdin.write(b"go\n")
        starter.stdin.close()
    for k, starter in starters.items():
        wait_for(lambda k=k, s=starter: is_up(spec, k) or s.poll() is not None, 30, lambda k=k: read_logs(spec, k))  # type: ignore[misc]
        if not is_up(spec, k):
            raise ClusterError(f"node {k} did not come up: {read_logs(spec, k)}")
    return pids


def is_up(spec: Spec, k: int) -> bool:
    """The node's first process is through, and its sshd listens; sshd says so a little after its starter has ended."""
    return (spec.folder(k) / "up").exists() and sshd_listens(spec, k)


def sshd_listens(spec: Spec, k: int) -> bool:
    """The node's sshd has written its pid file, whole."""
    try:
        return (spec.folder(k) / "sshd.pid").read_text().endswith("\n")
    except FileNotFoundError:
        return False


def read_logs(spec: Spec, k: int) -> str:
    """What a node said while it came up."""
    logs = [spec.folder(k) / "init.log", spec.folder(k) / "sshd.log"]
    return f"node {k} up; it says: " + " ".join(log.read_text().strip() for log in logs if log.exists())


def spawn_node(spec: Spec, k: int) -> subprocess.Popen[bytes]:
    """Start the first process of a node in namespaces of its own; it waits for its cable."""
    script = str(Path(__file__).with_name("node_init.sh"))
    with (spec.folder(k) / "init.log").open("ab") as log:
        return subprocess.Popen(
            [
                *(find_program("unshare"), "-muinp", "--fork", "--kill-child"),
                *("/bin/sh", script, str(spec.folder(k)), spec.name(k), find_program("sshd")),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={"PATH": NODE_PATH},
            start_new_session=True,
        )


def join_cgroup(spec: Spec, k: int, pid: int) -> None:
    """Put a process under the node's share of the processor, if it has one."""
    share = dict(spec.cpus).get(k)
    if share is not None:
        (give_share(spec, k, share) / "cgroup.procs").write_text(str(pid))


def give_share(spec: Spec, k: int, cores: float) -> Path:
    """Give a node so many cores, or a part of one; also while its processes run."""
    period_us = 100_000
    quota_us = int(cores * period_us)
    if (CGROUPS / "cpu" / "cpu.cfs_quota_us").exists():
        group = CGROUPS / "cpu" / f"{spec.tag}-n{k}"
        group.mkdir(exist_ok=True)
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    else:
        group = CGROUPS / f"{spec.tag}-n{k}"
        group.mkdir(exist_ok=True)
        (group / "cpu.max").write_text(f"{quota_us} {period_us}")
    return group


def start_on_loopback(spec: Spec) -> Pids:
    """Stand in for nodes by one sshd a loopback address, as the same user, each with a HOME of its own."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    pids: Pids = {}
    for k in spec.numbers:
        pids[k] = start_loopback_sshd(spec, k)
        spec.save(pids)
    return pids


def start_loopback_sshd(spec: Spec, k: int, options: tuple[str, ...] = ()) -> tuple[int, int, int]:
    """Start the sshd of a loopback node and tell its identity."""
    run(sshd_words(spec, k, options))
    pid_file = spec.folder(k) / "sshd.pid"
    wait_for(lambda: sshd_listens(spec, k), 10, lambda: read_logs(spec, k))
    pid = int(pid_file.read_text())
    return pid, start_ticks(pid) or 0, pid


def sshd_words(spec: Spec, k: int, options: tuple[str, ...] = ()) -> list[str]:
    """The command that starts a node's sshd, with further options for this start."""
    words = [find_program("sshd"), "-f", f"{spec.folder(k)}/sshd_config", "-E", f"{spec.folder(k)}/sshd.log"]
    for option in options:
        words += ["-o", option]
    return words


def ip_batch(lines: list[str]) -> None:
    """Run many `ip` commands in one process."""
    run([find_program("ip"), "-batch", "-"], stdin="\n".join(lines) + "\n")


def down(state: Path) -> None:
    """End every process of a cluster, remove its interfaces, control groups and files; does nothing twice."""
    if not (state / "state.json").exists():
        shutil.rmtree(state, ignore_errors=True)
        return
    spec, pids = read_state(state)
    for first, ticks, _ in pids.values():
        kill_exactly(first, ticks)
    for pid in find_pids_with_environ(f"HOME={state}/"):
        kill_exactly(pid, start_ticks(pid))
    # A node that was killed half way through its start is not in the list, but its starter's words name its folder.
    for pid in find_starters(state):
        kill_exactly(pid, start_ticks(pid))
    if spec.namespaces:
        remove_interfaces(spec)
    wait_for(lambda: not find_left(state, pids), 20, lambda: f"processes of {state} gone: {find_left(state, pids)}")
    for _, _, starter in pids.values():
        reap(starter)
    for group in [*CGROUPS.glob(f"cpu/{spec.tag}-n*"), *CGROUPS.glob(f"{spec.tag}-n*")]:
        wait_for(lambda g=group: remove_group(g), 10, f"{group} empty")  # type: ignore[misc]
    shutil.rmtree(state)


def find_starters(state: Path) -> list[int]:
    """The processes that were started to be a node of this cluster: its first one, or its sshd."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                words = Path(entry.path, "cmdline").read_bytes()
            except OSError:
                continue
            if f"{state}/n".encode() in words and (b"node_init.sh" in words or b"/sshd_config" in words):
                found.append(int(entry.name))
    return found


def find_left(state: Path, pids: Pids) -> list[int]:
    """The processes of a cluster that still run."""
    left = [first for first, ticks, _ in pids.values() if ticks and start_ticks(first) == ticks]
    return left + find_starters(state) + find_pids_with_environ(f"HOME={state}/")


def reap(pid: int) -> None:
    """Take the exit status of a child of ours, if it is one."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            done, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return
        if done:
            return
        time.sleep(0.01)


def remove_group(group: Path) -> bool:
    """Remove a control group; False while something is in it."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_interfaces(spec: Spec) -> None:
    """Remove the bridge and what is plugged into it."""
    for name in [path.name for path in Path("/sys/class/net").glob(f"{spec.tag}-*")]:
        # The other end of a pair goes with the first, and a node's own end with the node.
        subprocess.run([find_program("ip"), "link", "del", name], capture_output=True)


def kill_node(spec: Spec, pids: Pids, k: int) -> None:
    """Power a node off: its first process is killed, so the kernel ends every other one in it."""
    first, ticks, _ = pids[k]
    kill_exactly(first, ticks)
    if not spec.namespaces:
        for pid in find_pids_with_environ(f"HOME={spec.home_on_node(k)}\0"):
            kill_exactly(pid, start_ticks(pid), signal.SIGKILL)
    wait_for(lambda: start_ticks(first) != ticks, 10, f"node {k} is off")
