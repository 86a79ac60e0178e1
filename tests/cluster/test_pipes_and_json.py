"""The verbs of runs with other programs behind them: a reader that leaves, a disk that is full, one JSON document."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from cluster import Cluster, Completed, wait_for
from scenes import SLEEP, Scene


def piped(scene: Scene, words: str, behind: str) -> Completed:
    """Run a verb with a shell's redirection or pipe behind it; the last line of stderr is the verb's own exit code."""
    line = f'{{ "$0" -m orchestrator {words}; echo "exit code $?" >&2; }} {behind}'
    return scene.cluster.run_on_launch_host(["sh", "-c", line, sys.executable], cwd=scene.project, timeout_s=60)


def test_readers_that_leave_full_disks_and_one_document(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("sleep.py", SLEEP)
    done = scene.launch("--detach", "--json", "sleep.py")
    assert done.exit_code == 0, done
    document = json.loads(done.stdout)
    run_id = scene.experiment.name
    assert document == {"schema": 1, "run_id": run_id, "experiment": str(scene.experiment)}
    said = scene.experiment / "logs/rank_0000.out"
    wait_for(lambda: said.exists() and "sleeps" in said.read_text(), 30, "the rank sleeps")

    for words in (f"attach {run_id}", "status --watch --every 0.2"):
        begin = time.monotonic()
        done = piped(scene, words, "| head -1")
        print(f"{words} | head -1: {time.monotonic() - begin:.2f} s")
        assert done.stderr.endswith("exit code 0\n"), done
        assert len(done.stdout.splitlines()) == 1, done
    for words in ("logs --raw", "logs"):
        done = piped(scene, words, ">/dev/full")
        assert done.stderr.endswith("exit code 1\n"), done
        assert "No space left on device" in done.stderr
    assert piped(scene, "logs -f", "| head -1").stderr.endswith("exit code 0\n")
    assert scene.pids(1, "sleep.py"), "the run does not end of it"
    refused = scene.verb("kill", run_id, "--signal", "USR1", "--nodes", str(scene.nodes))
    assert (refused.exit_code, "exclude each other" in refused.stderr) == (2, True), refused
    assert scene.verb("kill", run_id, "--grace", "2s").exit_code == 0
    scene.wait_empty(10)


@pytest.mark.long
def test_status_settles_a_run_whose_launcher_was_killed_before_the_start(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("sleep.py", SLEEP)
    (scene.project / "big.bin").write_bytes(os.urandom(80_000_000))
    launcher = scene.start("sleep.py")
    wait_for(lambda: bool(scene.pids(1, "rsync")), 60, "rsync runs on a node")
    launcher.kill()
    nodes3.stop_sshd(3)
    try:
        lost = scene.verb("attach", scene.experiment.name, "--connect-timeout", "3s")
    finally:
        nodes3.start_sshd(3)
    assert lost.exit_code == 1, lost
    assert f"is not over: its start could not be undone on {nodes3.address(3)}" in lost.stderr
    done = scene.verb("status", scene.experiment.name)
    assert done.exit_code == 0, done
    assert "the launcher was killed before the start" in done.stderr
    assert done.stdout.count("nothing here") == 3
    assert done.stdout.startswith(f"{scene.experiment.name}  not started  ")
    assert scene.run_json()["state"] == "not started"
    assert scene.verb("kill").exit_code == 2, "a run still counts as live"
    scene.wait_empty(20)
