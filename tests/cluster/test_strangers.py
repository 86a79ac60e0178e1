"""Runs of which the launch host knows nothing any more: found, listed and stopped from the nodes alone."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from cluster import Cluster, Launcher, wait_for
from conftest import FreshCluster
from scenes import SLEEP, Scene, wait_running

GRACE = ("--grace", "2s")
pytestmark = pytest.mark.namespaces


def forget(scene: Scene, *launchers: Launcher) -> None:
    """Kill the launchers and remove every record of their runs."""
    for launcher in launchers:
        launcher.kill()
    shutil.rmtree(scene.cluster.launch_home / ".aorta/launches")
    shutil.rmtree(scene.project / "experiments")


def run_ids(scene: Scene) -> list[str]:
    return [path.name for path in scene.runs()]


def test_a_run_without_records_is_found_and_ended(nodes3: Cluster, tmp_path: Path) -> None:
    """On one node its supervisor is dead as well; the proof is the same."""
    scene = Scene(nodes3, tmp_path)
    scene.write("sleep.py", SLEEP)
    launcher = scene.start("sleep.py")
    wait_running(launcher, 3)
    (run_id,) = run_ids(scene)
    forget(scene, launcher)
    nodes3.kill_process(2, scene.pids(2, "supervisor.py")[0], signal.SIGKILL)
    unknown = scene.verb("kill")
    assert unknown.exit_code == 2, unknown
    done = scene.verb("kill", "--nodes", str(scene.nodes), *GRACE)
    print(f"kill from the nodes alone, grace 2 s: {done.seconds:.2f} s")
    assert done.exit_code == 0, done
    assert run_id in done.stderr
    assert done.stdout.count("none left") == 3
    scene.wait_empty(2)
    again = scene.verb("kill", "--nodes", str(scene.nodes), "--json")
    assert again.exit_code == 0, again
    assert json.loads(again.stdout) == {"schema": 1, "run_id": None, "clean": True, "nodes": []}
    none = scene.verb("kill", "--nodes", str(scene.nodes))
    assert none.stdout == "no run of this user lives on 3 nodes\n"


@pytest.mark.long
def test_of_several_runs_the_named_one_is_ended_or_all(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("sleep.py", SLEEP)
    launchers = [scene.start("--label", label, "sleep.py") for label in ("first", "second", "third")]
    for launcher in launchers:
        wait_running(launcher, 3)
    ids = {run_id.split("_")[0]: run_id for run_id in run_ids(scene)}
    forget(scene, *launchers)
    words = ("--nodes", str(scene.nodes), *GRACE)
    several = scene.verb("kill", *words)
    assert several.exit_code == 2, several
    for run_id in ids.values():
        assert (
            f"{run_id}  running  on {', '.join(nodes3.address(k) for k in nodes3.numbers)}  since 20" in several.stderr
        )
    assert scene.verb("kill", "nothing", *words).exit_code == 2
    assert scene.verb("kill", "--all", *words).exit_code == 2, "nobody can be asked"
    assert all(len(scene.pids(k, "sleep.py")) == 6 for k in nodes3.numbers)

    one = scene.verb("kill", "second", *words, "--json")
    assert one.exit_code == 0, one
    assert json.loads(one.stdout)["run_id"] == ids["second"]
    for k in nodes3.numbers:
        assert not scene.pids(k, ids["second"])
        assert scene.pids(k, ids["first"])
        assert scene.pids(k, ids["third"])
    rest = scene.verb("kill", "--all", "--yes", *words)
    assert rest.exit_code == 0, rest
    assert rest.stdout.count("none left") == 6
    scene.wait_empty(2)


@pytest.mark.long
def test_records_that_are_here_are_brought_to_their_end(nodes3: Cluster, tmp_path: Path) -> None:
    """The list names the nodes in another order than the run did: the node rank is the node's own."""
    scene = Scene(nodes3, tmp_path)
    scene.write("sleep.py", SLEEP)
    launcher = scene.start("sleep.py")
    wait_running(launcher, 3)
    launcher.kill()
    turned = nodes3.write_list(tmp_path / "turned.txt", nodes=[3, 1, 2])
    done = scene.verb("kill", "--nodes", str(turned), *GRACE)
    assert done.exit_code == 0, done
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [nodes3.address(k) for k in nodes3.numbers]
    scene.wait_empty(2)
    assert scene.verb("kill").exit_code == 2, "no run is live"
    assert scene.run_json()["state"] == "killed"


@pytest.mark.long
def test_a_node_that_cannot_be_asked_or_is_not_named_is_told(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(3)
    scene = Scene(cluster, tmp_path)
    scene.write("sleep.py", SLEEP)
    launcher = scene.start("sleep.py")
    wait_running(launcher, 3)
    forget(scene, launcher)
    cluster.stop_sshd(2)
    some = cluster.write_list(tmp_path / "some.txt", nodes=[1, 2])
    done = scene.verb("kill", "--nodes", str(some), *GRACE, "--connect-timeout", "3s")
    assert done.exit_code == 1, done
    assert f"{cluster.address(1)}: " in done.stdout
    assert done.stdout.count("none left") == 1
    assert f"{cluster.address(2)}: could not be asked, what is left there is not known" in done.stdout
    cluster.wait_process_table(1, scene.before[1], 2)
    assert scene.pids(3, "sleep.py")

    cluster.start_sshd(2)
    two = cluster.write_list(tmp_path / "two.txt", nodes=[2])
    done = scene.verb("kill", "--nodes", str(two), *GRACE)
    assert done.exit_code == 1, done
    assert done.stdout.count("it belongs to the run and is not in the node list") == 2
    assert cluster.address(3) in done.stdout
    rest = scene.verb("kill", "--nodes", str(scene.nodes), *GRACE)
    assert rest.exit_code == 0, rest
    wait_for(lambda: not any(scene.pids(k, "sleep.py") for k in cluster.numbers), 5, "all nodes are empty")
