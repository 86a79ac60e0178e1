"""What `check` finds in sessions and machines, each broken for real; and its remedies, typed as they are printed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from asking import check, run_on, try_remedy
from cluster import Cluster, wait_for
from conftest import FreshCluster

pytestmark = pytest.mark.namespaces
LONG = "$HOME/" + "a-folder-for-temporary-files-with-a-long-name/" * 3
OLD = "202001010000"


def lower_limits(cluster: Cluster, k: int, *limits: str) -> None:
    """Lower what the sessions of a node inherit from its sshd."""
    pid = (cluster.folder(k) / "sshd.pid").read_text().strip()
    run_on(cluster, k, "prlimit", "--pid", pid, *limits)


def test_sessions_and_places_that_are_short_of_something(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(3)
    home = cluster.spec.home_on_node(1)
    # The first: limits of sshd, a TMPDIR that is too long for sockets, what a killed run left in shared memory.
    lower_limits(cluster, 1, "--nofile=512:512")
    (cluster.home(1) / ".bashrc").write_text(f"mkdir -p {LONG}; export TMPDIR={LONG}\n")
    stale = f"/dev/shm/torch_{cluster.spec.octet}_stale"
    run_on(cluster, 1, "sh", "-c", f"fallocate -l 400M {stale} && touch -t {OLD} {stale}")
    # The second: our folder is a file, a working directory on which nothing may be executed.
    (cluster.home(2) / ".aorta").write_text("")
    cluster.mount_small(2, f"{home}/work", 64)
    run_on(cluster, 2, "mount", "-o", "remount,noexec", f"{home}/work")
    # The third: a full disk, and a TMPDIR that is not there.
    (cluster.home(3) / ".bashrc").write_text("export TMPDIR=$HOME/scratch/tmp\n")
    cluster.mount_small(3, f"{home}/work", 8)
    cluster.fill(3, f"{home}/work")
    (tmp_path / "config.yaml").write_text("launch:\n  workdir: ~/work\n  require_commands: [rsync, no-such-program]\n")
    try:
        checked = check(cluster, tmp_path, "--config", "config.yaml")
    finally:
        run_on(cluster, 1, "rm", "-f", stale)
    wanted = {
        ("commands", 0),
        ("commands", 1),
        ("commands", 2),
        ("run-folder", 1),
        ("disk", 1),
        ("disk", 2),
    }
    assert wanted <= checked.failing(), checked.failing()
    assert checked.exit_code == 3
    warned = checked.found("warn")
    assert {("nofile", 0), ("socket-path", 0), ("shm-stale", 0), ("mounts", 1), ("tmp", 2)} <= warned, warned
    assert "512 open files" in checked.finding("nofile", 0)["detail"]
    assert "no-such-program" in checked.finding("commands", 0)["detail"]
    assert "rsync" not in checked.finding("commands", 0)["detail"]
    assert f"TMPDIR={home}/scratch/tmp is not there" in checked.finding("tmp", 2)["detail"]

    for name, node_rank in (("run-folder", 1), ("mounts", 1), ("tmp", 2)):
        try_remedy(cluster, checked.finding(name, node_rank))
    cluster.restart_sshd(1)
    lower_limits(cluster, 1, "--nofile=512:8192")
    again = check(cluster, tmp_path, "--config", "config.yaml")
    assert ("run-folder", 1) not in again.failing()
    assert not {("mounts", 1), ("nofile", 0), ("tmp", 2), ("shm-stale", 0)} & again.found("warn")
    assert "raised from 512" in again.finding("nofile", 0)["detail"]
    # What the run says itself is what counts.
    given = check(cluster, tmp_path, "--config", "config.yaml", "--only", "socket-path,tmp", "--env", "TMPDIR=/tmp")
    assert given.found("warn", "fail") == set()


def test_a_home_that_is_mounted_read_only(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(2)
    home = cluster.spec.home_on_node(1)
    run_on(cluster, 2, "mount", "--bind", home, home)
    run_on(cluster, 2, "mount", "-o", "remount,bind,ro", home)
    checked = check(cluster, tmp_path)
    assert ("mounts", 1) in checked.failing()
    assert f"HOME {home} is mounted read-only" in checked.finding("mounts", 1)["detail"]
    try_remedy(cluster, checked.finding("mounts", 1))
    assert check(cluster, tmp_path).status("mounts", 1) == "ok"


def cover(cluster: Cluster, k: int, path: str, text: str) -> None:
    """Let a file of the kernel say something else on one node."""
    cover = cluster.folder(k) / "tmp" / path.replace("/", "_")
    cover.write_text(text)
    run_on(cluster, k, "mount", "--bind", f"/tmp/{cover.name}", path)


def break_machine(cluster: Cluster, k: int) -> None:
    """Let a machine tell of a broken disk, a denial, an upgrade, memory that is paged out, and load."""
    now_us = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
    said = ("I/O error, dev sdq, sector 8", 'audit: type=1400 avc:  denied  { read } for pid=9 comm="sshd"')
    cover(cluster, k, "/dev/kmsg", "".join(f"3,{n},{now_us},-;{text}\n" for n, text in enumerate(said)))
    cover(cluster, k, "/proc/sys/vm/overcommit_memory", "2\n")
    memory = {"MemTotal": 64, "MemAvailable": 32, "SwapTotal": 8, "SwapFree": 2}
    cover(cluster, k, "/proc/meminfo", "".join(f"{name}: {gib << 20} kB\n" for name, gib in memory.items()))
    cover(cluster, k, "/proc/loadavg", "64.00 32.00 16.00 3/200 4000\n")
    run_on(cluster, k, "sh", "-c", "echo linux-image-6.1 > /run/reboot-required.pkgs; touch /run/reboot-required")
    settings = "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=nobody\n"
    folder = "/run/systemd/logind.conf.d"
    run_on(cluster, k, "sh", "-c", f"mkdir -p /run/systemd/system {folder}; printf '{settings}' >{folder}/site.conf")


GROUPS = "/sys/fs/cgroup"


def hold(cluster: Cluster, k: int, group: str) -> None:
    """Hold the sessions of a node to one core and to few processes."""
    pid = (cluster.folder(k) / "sshd.pid").read_text().strip()
    steps = [f"mount -t tmpfs groups {GROUPS}"]
    for kind, limit in (("pids", "echo 150 >pids.max"), ("cpu", "echo 100000 >cpu.cfs_quota_us")):
        steps.append(f"mkdir {GROUPS}/{kind} && mount -t cgroup -o {kind} cgroup {GROUPS}/{kind}")
        steps.append(f"mkdir {GROUPS}/{kind}/{group} && cd {GROUPS}/{kind}/{group} && {limit}")
        steps.append(f"echo {pid} >cgroup.procs")
    run_on(cluster, k, "sh", "-ec", "\n".join(steps))


def release(cluster: Cluster, k: int, group: str) -> None:
    """Take back `hold`; a session that has just ended holds its group for a moment more."""
    pid = (cluster.folder(k) / "sshd.pid").read_text().strip()
    for kind in ("pids", "cpu"):
        run_on(cluster, k, "sh", "-c", f"echo {pid} >{GROUPS}/{kind}/cgroup.procs")
        folder = f"{GROUPS}/{kind}/{group}"
        wait_for(lambda f=folder: cluster.exec(k, ["rmdir", f]).returncode == 0, 10, f"{folder} is empty")  # type: ignore[misc]


def test_machines_with_faults_and_a_user_who_may_little(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(3)
    group = f"{cluster.spec.tag}-n2x"
    break_machine(cluster, 1)
    # The second: control groups, a TMPDIR on which nothing may be executed, our folder a link to nothing.
    groups = Path(GROUPS, "pids").is_dir() and Path(GROUPS, "cpu").is_dir()
    scratch = f"{cluster.spec.home_on_node(2)}/scratch"
    cluster.mount_small(2, scratch, 256)
    run_on(cluster, 2, "mount", "-o", "remount,noexec", scratch)
    (cluster.home(2) / ".bashrc").write_text(f"export TMPDIR={scratch}\n")
    (cluster.home(2) / ".aorta").symlink_to("gone/away")
    # The third, for a user who is not root: few processes, a TMPDIR that is not his, our folder with runs of root.
    cluster.restart_sshd(3, "SetEnv=TMPDIR=/usr")
    lower_limits(cluster, 3, "--nproc=300:300")
    run_on(
        cluster, 3, "sh", "-c", "mkdir -p /home/train/.aorta/runs /run/systemd/system; chown train /home/train/.aorta"
    )
    nodes = cluster.write_list(tmp_path / "nodes.txt")
    nodes.write_text(
        nodes.read_text().replace(f"{cluster.address(3)} user={cluster.spec.user}", f"train@{cluster.address(3)}")
    )
    (tmp_path / "config.yaml").write_text("launch:\n  checks:\n    load: {warn_per_core: 0.05}\n")
    if groups:
        hold(cluster, 2, group)
    try:
        with spinning(cluster, 1):
            # The kernel log here is one that the test made.
            checked = check(cluster, tmp_path, "--config", "config.yaml", "--skip", "same-machine", nodes=nodes)
    finally:
        if groups:
            release(cluster, 2, group)
    assert {("run-folder", 1), ("run-folder", 2)} <= checked.failing(), checked.failing()
    assert ("home", 2) not in checked.failing()
    details = {
        ("kernel-log", 0): "disk: I/O error, dev sdq, sector 8 (",
        ("selinux", 0): "avc:  denied",
        ("overcommit", 0): "vm.overcommit_memory is 2",
        ("swap", 0): "6.0 GiB are paged out",
        ("load", 0): "sh -c while :; do :; done",
        ("reboot", 0): "a reboot is due for linux-image-6.1",
        ("logout", 0): "KillUserProcesses=yes",
        ("tmp", 1): f"nothing may be executed at {scratch}",
        ("run-folder", 1): "~/.aorta is a link to nothing",
        ("processes", 2): "300 processes",
        ("tmp", 2): "TMPDIR=/usr cannot be written",
        ("run-folder", 2): "a folder that cannot be written: runs is of root",
        ("remove-ipc", 2): "RemoveIPC=yes",
    }
    if groups:
        details["cpu-limit", 1] = "a control group allows 1 of "
        details["processes", 1] = "a control group allows 1"
    for (name, node_rank), told in details.items():
        finding = checked.finding(name, node_rank)
        assert finding["status"] in ("warn", "fail"), finding
        assert told in finding["detail"], finding

    for name, node_rank in (("overcommit", 0), ("tmp", 1), ("run-folder", 1)):
        finding = checked.finding(name, node_rank)
        try_remedy(cluster, {**finding, "remedy": finding["remedy"].partition("; or ")[0]})
    again = check(cluster, tmp_path, "--config", "config.yaml", nodes=nodes)
    assert [again.status(name, 1) for name in ("run-folder", "cpu-limit", "processes")] == ["ok", "ok", "ok"]
    assert again.status("overcommit", 0) == "ok"
    assert "nothing may be executed" not in again.finding("tmp", 1)["detail"]


@contextmanager
def spinning(cluster: Cluster, k: int) -> Iterator[None]:
    """Keep a processor busy on a node."""
    process = subprocess.Popen(
        [*cluster.ssh_words(k), "echo up; exec sh -c 'while :; do :; done'"], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield
    finally:
        process.kill()
        process.wait()
        for one in cluster.process_table(k):
            if "while :" in one.command:
                cluster.kill_process(k, one.pid)
