"""What `check` finds in sessions and machines, each broken for real; and its remedies, typed as they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from asking import check, run_on, try_remedy
from cluster import Cluster
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
    lower_limits(cluster, 1, "--nofile=512:", "--nproc=300:")
    (cluster.home(1) / ".bashrc").write_text(f"mkdir -p {LONG}; export TMPDIR={LONG}\n")
    stale = f"/dev/shm/torch_{cluster.spec.octet}_stale"
    run_on(cluster, 1, "sh", "-c", f"truncate -s 400M {stale} && touch -t {OLD} {stale}")
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
        ("tmp", 2),
        ("disk", 1),
        ("disk", 2),
    }
    assert wanted <= checked.failing(), checked.failing()
    assert checked.exit_code == 3
    warned = checked.found("warn")
    assert {("nofile", 0), ("processes", 0), ("socket-path", 0), ("shm-stale", 0), ("mounts", 1)} <= warned, warned
    assert "512 open files" in checked.finding("nofile", 0)["detail"]
    assert "300 processes" in checked.finding("processes", 0)["detail"]
    assert "no-such-program" in checked.finding("commands", 0)["detail"]
    assert "rsync" not in checked.finding("commands", 0)["detail"]
    assert f"TMPDIR={home}/scratch/tmp is not there" in checked.finding("tmp", 2)["detail"]

    for name, node_rank in (("run-folder", 1), ("mounts", 1), ("tmp", 2)):
        try_remedy(cluster, checked.finding(name, node_rank))
    lower_limits(cluster, 1, "--nofile=8192:", "--nproc=8192:")
    again = check(cluster, tmp_path, "--config", "config.yaml")
    assert not {("run-folder", 1), ("tmp", 2)} & again.failing()
    assert not {("mounts", 1), ("nofile", 0), ("processes", 0), ("shm-stale", 0)} & again.found("warn")


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
