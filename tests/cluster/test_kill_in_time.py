"""What `kill` promises about time, on as many nodes as one command serves at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import FreshCluster
from scenes import Scene, wait_running

DEAF = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("rank", os.environ["RANK"], "is deaf", flush=True)
time.sleep(600)
"""
NODES, RANKS = 8, 2
GRACE_S = 5.0
LIMIT_S = 8.0
UNWATCHED_S = 30.0
"""Without a controller, links are opened first, and afterwards the record is completed: twice the work, all of it on one machine here."""


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.parametrize("watched", [True, False], ids=["while-it-is-watched", "after-its-launcher-was-killed"])
def test_kill_of_8_nodes_with_deaf_ranks_is_done_in_time(
    fresh_cluster: FreshCluster, tmp_path: Path, *, watched: bool
) -> None:
    scene = Scene(fresh_cluster(NODES), tmp_path)
    scene.write("deaf.py", DEAF)
    launcher = scene.start("--nproc-per-node", str(RANKS), "--ranks", "all", "deaf.py")
    wait_running(launcher, NODES * RANKS)
    for rank in range(NODES * RANKS):
        launcher.wait_for_text(f"rank {rank} is deaf", 60)
    if not watched:
        launcher.kill()
    begin = time.monotonic()
    kill = scene.cluster.start_launcher(["kill", "--grace", f"{GRACE_S:g}s"], cwd=scene.project)
    kill.wait_for_text("none left", 60)
    proved_s = time.monotonic() - begin
    done = kill.wait(60)
    seconds = time.monotonic() - begin
    what = f"kill of {NODES} nodes with {RANKS} deaf ranks each, {GRACE_S:g} s grace"
    print(f"{what}: proof after {proved_s:.2f} s, over after {seconds:.2f} s")
    assert done.exit_code == 0, done
    for k in scene.cluster.numbers:
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"{scene.cluster.address(k)}: "))
        assert line.endswith("none left"), line
    scene.wait_empty(2)
    assert GRACE_S < seconds < (LIMIT_S if watched else UNWATCHED_S)
    if watched:
        assert launcher.wait(30).exit_code == 143
