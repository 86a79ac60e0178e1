"""Links that break, fall silent or never come back: no byte is lost, and a lost node is told."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from cluster import Cluster, wait_for
from conftest import FreshCluster
from scenes import SLEEP, Scene, said_after, wait_running

COUNT = """
import os, time
for number in range(200):
    print(os.environ["RANK"], number, "x" * 200, flush=True)
    time.sleep(0.06)
"""


def wanted_lines(rank: int) -> str:
    return "".join(f"{rank} {number} {'x' * 200}\n" for number in range(200))


@pytest.mark.long
@pytest.mark.namespaces
def test_a_link_that_breaks_is_opened_again_and_loses_nothing(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("count.py", COUNT)
    launcher = scene.start("--ranks", "all", "count.py")
    wait_running(launcher, 2)
    for _ in range(2):
        seen = launcher.stdout.count("[1:1]")
        begin = time.time()
        for pid in scene.pids(2, "sshd: "):
            nodes3.exec(2, ["sh", "-c", f"kill -9 {pid}"])  # the second is perhaps the child of the first, and gone
        wait_for(lambda seen=seen: launcher.stdout.count("[1:1]") > seen + 20, 60, "lines come again")  # type: ignore[misc]
        print(f"20 lines after the break of the link: {time.time() - begin:.2f} s")
    done = launcher.wait(60)
    assert done.exit_code == 0, done
    assert done.stderr.count("the link is back, nothing was missed") == 2
    for rank in (0, 1):
        assert (scene.experiment / f"logs/rank_{rank:04d}.out").read_text() == wanted_lines(rank)
        assert done.stdout.count(f"[{rank}:{rank}]") == 200, "a line is shown twice, or not at all"


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.timeout(200)
def test_ctrl_c_while_a_node_is_silent_reaches_it_when_it_is_back(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(2)
    scene = Scene(cluster, tmp_path)
    scene.write("sleep.py", SLEEP)
    launcher = scene.start("--grace", "2s", "sleep.py")
    wait_running(launcher, 2)
    cluster.link(2, "down")
    launcher.wait_for_text("the link is silent", 60)
    launcher.press_ctrl_c()
    launcher.wait_for_text("stopping every node", 10)
    wait_for(lambda: not scene.pids(1, "sleep.py") and not scene.pids(1, "supervisor.py"), 10, "node 1 has stopped")
    assert scene.pids(1, "sshd: "), "only the launcher's link is left there"
    cluster.link(2, "up")
    done = launcher.wait(60)
    assert done.exit_code == 130, done
    scene.wait_empty(5)


@pytest.mark.long
@pytest.mark.namespaces
def test_a_short_cut_of_the_link_loses_nothing(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(2)
    scene = Scene(cluster, tmp_path)
    scene.write("count.py", COUNT)
    launcher = scene.start("count.py")
    wait_running(launcher, 2)
    cluster.link(2, "down")
    threading.Event().wait(8)  # the length of the cut is the subject
    cluster.link(2, "up")
    done = launcher.wait(100)
    assert done.exit_code == 0, done
    for rank in (0, 1):
        assert (scene.experiment / f"logs/rank_{rank:04d}.out").read_text() == wanted_lines(rank)
    assert not scene.events("lost")
    scene.wait_empty(10)


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.timeout(240)
def test_a_cut_that_is_noticed_and_restored_loses_nothing(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(2)
    scene = Scene(cluster, tmp_path)
    scene.write("count.py", COUNT.replace("0.06", "0.3"))
    launcher = scene.start("count.py")
    wait_running(launcher, 2)
    begin = time.time()
    cluster.link(2, "down")
    print(f"a cut link is told after {said_after(launcher, 'the link is silent', begin):.1f} s")
    cluster.link(2, "up")
    launcher.wait_for_text("the link is back", 60)
    done = launcher.wait(120)
    assert done.exit_code == 0, done
    for rank in (0, 1):
        assert (scene.experiment / f"logs/rank_{rank:04d}.out").read_text() == wanted_lines(rank)
    assert [event["kind"] for event in scene.events() if event["kind"] in ("suspect", "back", "lost")] == [
        "suspect",
        "back",
    ]
    scene.wait_empty(10)


@pytest.mark.namespaces
@pytest.mark.timeout(200)
@pytest.mark.parametrize("how", ["cut", pytest.param("off", marks=pytest.mark.long)])
def test_a_lost_node_ends_the_run_and_kill_cleans_it_later(
    fresh_cluster: FreshCluster, tmp_path: Path, how: str
) -> None:
    cluster = fresh_cluster(3)
    scene = Scene(cluster, tmp_path)
    scene.write("sleep.py", SLEEP)
    scene.write("c.yaml", "launch: {lost_after_s: 3, connect_timeout_s: 3}\n")
    launcher = scene.start("--config", "c.yaml", "sleep.py")
    wait_running(launcher, 3)
    begin = time.time()
    if how == "off":
        cluster.kill_node(2)
    else:
        cluster.link(2, "down")
    lost_s = said_after(launcher, "is lost", begin, 90)
    done = launcher.wait(60)
    print(f"node {how}: lost after {lost_s:.1f} s, over after {time.time() - begin:.1f} s")
    assert done.exit_code == 4, done
    assert scene.verdict()["state"] == "lost"
    assert cluster.address(2) in scene.verdict()["cause"]
    assert scene.verdict()["stopped"] == [0, 2]
    for k in (1, 3):
        cluster.wait_process_table(k, scene.before[k], 5)
    first = scene.verb("kill", "--connect-timeout", "2s")
    assert first.exit_code == 1, first
    assert f"{cluster.address(2)}: could not be asked" in first.stdout
    if how == "off":
        return
    assert scene.pids(2, "sleep.py"), "the node on the other side of the cut was never told"
    cluster.link(2, "up")
    second = scene.verb("kill", "--grace", "3s")
    assert second.exit_code == 0, second
    assert f"{cluster.address(2)}: " in second.stdout
    assert "none left" in second.stdout
    scene.wait_empty(5)
    assert scene.verb("kill").exit_code == 2
