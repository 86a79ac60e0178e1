"""GPU memory back at the level before the run is part of the proof that nothing is left; the driver's tool is a stand-in."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster, wait_for
from conftest import FreshCluster
from scenes import SLEEP, Scene, wait_running
from test_check_gpus import busy

HANG = "nvidia_smi.sleep"
AS_BEFORE = "none left, GPU memory as before"


def hold(cluster: Cluster, k: int, index: int, mib: int) -> None:
    """Let the driver of a node say that so much of a GPU is in use."""
    table = cluster.folder(k) / "gpus.csv"
    rows = [line.split(",") for line in table.read_text().splitlines()]
    rows[index][4] = str(mib)
    table.write_text("".join(",".join(row) + "\n" for row in rows))


@pytest.mark.namespaces
def test_memory_that_is_held_after_the_end_is_told_and_not_clean(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(2, gpus=2)
    scene = Scene(cluster, tmp_path)
    scene.write("brief.py", "print('brief', flush=True)")
    done = scene.launch("--nproc-per-node", "1", "brief.py")
    assert done.exit_code == 0, done
    assert [event["gpus"] for event in scene.events("final")] == [[], []]

    scene.write("sleep.py", SLEEP)
    launcher = scene.start("--label", "held", "--nproc-per-node", "1", "sleep.py")
    wait_running(launcher, 2)
    hold(cluster, 2, 1, 3004)
    begin = time.monotonic()
    killed = scene.verb("kill", "--grace", "2s")
    print(f"kill with memory that does not come back: {time.monotonic() - begin:.2f} s")
    assert killed.exit_code == 1, killed
    assert killed.stdout.count(AS_BEFORE) == 1
    assert "GPU 1 still holds 3,000 MiB more than before the run" in killed.stdout
    ended = launcher.wait(30)
    assert ended.exit_code == 1, ended
    assert f"{cluster.address(2)}: GPU 1 still holds 3,000 MiB more than before the run" in ended.stderr
    scene.wait_empty(5)
    (experiment,) = (path for path in scene.runs() if path.name.startswith("held_"))
    verdict = json.loads((experiment / "run.json").read_text())["verdict"]
    assert verdict["gpus_held"] == [{"node": cluster.address(2), "gpu": 1, "held_mib": 3000}]

    hold(cluster, 2, 1, 4)
    again = scene.verb("kill", "held_", "--json")
    assert again.exit_code == 0, again
    assert [node["gpus"] for node in json.loads(again.stdout)["nodes"]] == [[], []]


@pytest.mark.long
@pytest.mark.namespaces
def test_what_others_hold_is_theirs_and_a_tool_that_hangs_is_no_failure(
    fresh_cluster: FreshCluster, tmp_path: Path
) -> None:
    cluster = fresh_cluster(2, gpus=2)
    scene = Scene(cluster, tmp_path)
    scene.write("sleep.py", SLEEP)
    launcher = scene.start("--nproc-per-node", "1", "sleep.py")
    wait_running(launcher, 2)
    with busy(cluster, 1):
        # Somebody else came in mid-run; 4706 MiB are his.
        hold(cluster, 1, 0, 4710)
        (cluster.folder(2) / HANG).write_text("60\n")
        begin = time.monotonic()
        killed = scene.verb("kill", "--grace", "2s")
        print(f"kill with a driver that hangs: {time.monotonic() - begin:.2f} s")
    assert killed.exit_code == 0, killed
    assert f"{cluster.address(1)}: " in killed.stdout
    assert killed.stdout.count(AS_BEFORE) == 1
    assert "none left; GPU memory not checked: nvidia-smi gave no answer within 5 s" in killed.stdout
    ended = launcher.wait(30)
    assert ended.exit_code == 143, ended
    assert f"{cluster.address(2)}: not checked: nvidia-smi gave no answer" in ended.stderr
    scene.wait_empty(5)


@pytest.mark.long
@pytest.mark.namespaces
def test_without_a_supervisor_the_level_is_compared_as_well(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(2, gpus=1)
    scene = Scene(cluster, tmp_path)
    scene.write("sleep.py", SLEEP)
    launcher = scene.start("--label", "first", "sleep.py")
    wait_running(launcher, 2)
    launcher.kill()
    for k in cluster.numbers:
        cluster.kill_process(k, scene.pids(k, "supervisor.py")[0], signal.SIGKILL)
    hold(cluster, 2, 0, 904)
    killed = scene.verb("kill", "--grace", "2s")
    assert killed.exit_code == 1, killed
    assert killed.stdout.count(AS_BEFORE) == 1
    assert "GPU 0 still holds 900 MiB more" in killed.stdout
    scene.wait_empty(5)

    # With a controller it is the pump that ends what a supervisor left.
    hold(cluster, 2, 0, 4)
    launcher = scene.start("--label", "second", "--grace", "2s", "sleep.py")
    wait_running(launcher, 2)
    cluster.kill_process(2, scene.pids(2, "supervisor.py")[0], signal.SIGKILL)
    done = launcher.wait(60)
    assert done.exit_code == 1, done
    (experiment,) = (path for path in scene.runs() if path.name.startswith("second_"))
    finals = [json.loads(line) for line in (experiment / "events.jsonl").read_text().splitlines()]
    assert [event["gpus"] for event in finals if event["kind"] == "final"] == [[], []]
    wait_for(lambda: not scene.pids(2, "sleep.py"), 5, "node 2 is empty")
