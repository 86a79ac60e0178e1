"""Stopping a run: from its own terminal, by a signal, by `kill` from another shell; each time nothing is left."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster, wait_for
from conftest import FreshCluster
from scenes import SLEEP, STUBBORN, Scene, wait_running

GRACE = ("--grace", "3s")
POLITE = """
import signal, sys, time
def stop(number, frame):
    print("saving a checkpoint", flush=True)
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("polite", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_mid_run_stops_every_node_within_the_grace(
    nodes3: Cluster, tmp_path: Path, number: int, code: int
) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("polite.py", POLITE)
    launcher = scene.start("--nproc-per-node", "2", *GRACE, "--ranks", "all", "polite.py")
    wait_running(launcher, 6)
    wait_for(lambda: launcher.stdout.count("polite") == 6, 60, "all ranks can be asked to stop")
    begin = time.monotonic()
    if number == signal.SIGINT:
        launcher.press_ctrl_c()
    else:
        launcher.send_signal(number)
    scene.wait_empty(30)
    empty_s = time.monotonic() - begin
    done = launcher.wait(30)
    print(f"signal {number}: nodes empty after {empty_s:.2f} s, launcher ended after {time.monotonic() - begin:.2f} s")
    assert done.exit_code == code, done
    assert empty_s < 3 + 2
    for rank in range(6):
        assert (scene.experiment / f"logs/rank_{rank:04d}.out").read_text().endswith("saved\n"), "TERM came first"
    assert scene.verdict()["state"] == "killed"
    assert scene.verdict()["exit_code"] == code
    assert scene.verdict()["survivors"] == []
    assert scene.verb("kill").exit_code == 2, "no run is live any more"


def test_a_second_ctrl_c_kills_at_once(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("deaf.py", STUBBORN)
    launcher = scene.start("--grace", "60s", "--ranks", "all", "deaf.py")
    wait_running(launcher, 3)
    wait_for(lambda: launcher.stdout.count("is deaf") == 3, 60, "all ranks are deaf")
    launcher.press_ctrl_c()
    launcher.wait_for_text("once more to kill at once", 10)
    begin = time.monotonic()
    launcher.press_ctrl_c()
    scene.wait_empty(30)
    empty_s = time.monotonic() - begin
    done = launcher.wait(30)
    print(f"second Ctrl-C: nodes empty after {empty_s:.2f} s")
    assert done.exit_code == 130, done
    assert empty_s < 2


@pytest.mark.parametrize("phase", ["check", "push", "start"])
def test_ctrl_c_before_the_run_leaves_nothing(nodes3: Cluster, tmp_path: Path, phase: str) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("sleep.py", SLEEP)
    if phase == "push":
        (scene.project / "big.bin").write_bytes(os.urandom(60_000_000))
    launcher = scene.start("-v", *GRACE, "sleep.py")
    if phase == "check":
        wait_for(lambda: any(nodes3.process_table(k) - scene.before[k] for k in nodes3.numbers), 60, "it connects")
    elif phase == "push":
        wait_for(lambda: bool(scene.pids(1, "rsync")), 60, "rsync runs on a node")
    else:
        wait_for(lambda: bool(scene.pids(3, "supervisor.py")), 60, "a supervisor starts")
    launcher.press_ctrl_c()
    scene.wait_empty(30)
    done = launcher.wait(30)
    assert done.exit_code == 130, done
    assert "Traceback" not in done.stderr
    scene.wait_empty(1)
    if phase != "check":
        assert scene.verb("kill").exit_code == 2, "no run is live"


@pytest.mark.namespaces
def test_kill_from_another_shell_and_its_words(nodes3: Cluster, tmp_path: Path) -> None:
    """Kill without a name with none, one and two live runs; one of two on the same nodes; prefix; twice; --all."""
    scene = Scene(nodes3, tmp_path)
    scene.write("deaf.py", STUBBORN)
    scene.write("sleep.py", SLEEP)
    none = scene.verb("kill")
    assert none.exit_code == 2, none
    first = scene.start("--label", "first", "deaf.py")
    first.wait_for_text("rendezvous at", 60)
    second = scene.start("--label", "second", "sleep.py")
    wait_running(first, 3)
    wait_running(second, 3)
    wait_for(lambda: all(len(scene.pids(k, "time.sleep(600)")) == 3 for k in nodes3.numbers), 60, "daemons are out")

    two = scene.verb("kill")
    assert two.exit_code == 2, two
    assert "first_" in two.stderr
    assert "second_" in two.stderr
    assert scene.verb("kill", "nothing").exit_code == 2
    assert scene.verb("kill", "--all").exit_code == 2, "nobody can be asked"
    assert first.running
    assert second.running

    others = {k: [*scene.pids(k, "sleep.py"), *scene.pids(k, "second_")] for k in nodes3.numbers}
    begin = time.monotonic()
    one = scene.verb("kill", "first_", *GRACE)
    print(f"kill of a deaf run, grace 3 s: {time.monotonic() - begin:.2f} s")
    assert one.exit_code == 0, one
    for k in nodes3.numbers:
        (line,) = (line for line in one.stdout.splitlines() if line.startswith(f"{nodes3.address(k)}: "))
        assert "killed" in line
        assert line.endswith("none left")
        assert not scene.pids(k, "first_")
        assert not scene.pids(k, "time.sleep(600)")
        assert set(scene.pids(k, "sleep.py")) <= set(others[k]), "the other run was touched"
    stopped = first.wait(30)
    assert stopped.exit_code == 143, stopped
    assert "stopped by aorta-launch kill" in stopped.stderr
    assert second.running

    again = scene.verb("kill", "first_", "--json")
    assert again.exit_code == 0, again
    document = json.loads(again.stdout)
    assert document["clean"]
    assert [node["stopped"] for node in document["nodes"]] == [0, 0, 0]
    assert second.running
    rest = scene.verb("kill", "--all", "--yes", *GRACE)
    assert rest.exit_code == 0, rest
    assert rest.stdout.count("none left") == 3
    assert second.wait(30).exit_code == 143
    scene.wait_empty(5)


@pytest.mark.namespaces
def test_kill_after_the_launcher_was_killed_and_its_ranks_stand_still(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("sleep.py", SLEEP)
    launcher = scene.start("sleep.py")
    wait_running(launcher, 3)
    launcher.kill()
    for k in nodes3.numbers:
        (rank,) = (pid for pid in scene.pids(k, "sleep.py") if pid not in scene.pids(k, "torch.distributed.run"))
        nodes3.kill_process(k, rank, signal.SIGSTOP)
    (supervisor,) = scene.pids(2, "supervisor.py")
    nodes3.kill_process(3, scene.pids(3, "supervisor.py")[0], signal.SIGKILL)
    assert supervisor
    begin = time.monotonic()
    done = scene.verb("kill", "--grace", "2s")
    print(f"kill of a run of stopped ranks, grace 2 s: {time.monotonic() - begin:.2f} s")
    assert done.exit_code == 0, done
    assert done.stdout.count("none left") == 3
    scene.wait_empty(2)
    assert scene.verb("kill").exit_code == 2


@pytest.mark.namespaces
def test_kill_names_a_node_that_cannot_be_asked(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(2)
    scene = Scene(cluster, tmp_path)
    scene.write("sleep.py", SLEEP)
    launcher = scene.start("sleep.py")
    wait_running(launcher, 2)
    launcher.kill()
    cluster.stop_sshd(2)
    before = cluster.process_table(2)
    done = scene.verb("kill", "--grace", "2s", "--connect-timeout", "3s")
    assert done.exit_code == 1, done
    assert f"{cluster.address(1)}: " in done.stdout
    assert f"{cluster.address(2)}: could not be asked, what is left there is not known" in done.stdout
    cluster.wait_process_table(1, scene.before[1], 2)
    assert [p for p in before if "sleep.py" in p.command]
    cluster.start_sshd(2)
    assert scene.verb("kill", "--grace", "2s").exit_code == 0
    wait_for(lambda: not scene.pids(2, "sleep.py") and not scene.pids(2, "supervisor"), 5, "node 2 is empty")
