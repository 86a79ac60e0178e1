"""Keeping house: ls, note and prune on real nodes; prune never takes a run that lives."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Completed, wait_for
from conftest import FreshCluster
from scenes import SLEEP, Scene, wait_running

from orchestrator.nodelist import read_node_list

QUICK = 'import os\nprint("rank", os.environ["RANK"])\n'
LATE = """
import json, os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
rank = int(os.environ["RANK"])
with open(os.path.join(os.environ["AORTA_OUTPUT_DIR"], f"rank_{rank}.json"), "w") as file:
    json.dump({"rank": rank}, file)
"""
LOG = 100_000


class House:
    """A launch host that remembers the runs of this test alone, and runs made up for it."""

    def __init__(self, cluster: Cluster, tmp_path: Path, **extra: Any) -> None:
        self.cluster = cluster
        self.scene = Scene(cluster, tmp_path, **extra)
        self.launches = cluster.launch_home / ".aorta" / "launches"
        shutil.rmtree(self.launches, ignore_errors=True)
        self.launches.mkdir(parents=True)

    def plant(self, name: str, day: int, *, live: bool = False, state: str = "succeeded", year: int = 2026) -> str:
        """Make a run up: entry, record, run folders."""
        run_id = f"{name}_{year}11{day:02d}_000000-aaaa"
        experiment = self.scene.project / "experiments" / run_id
        experiment.mkdir(parents=True)
        nodes = read_node_list(self.scene.nodes)
        entry = {"schema": 1, "run_id": run_id, "experiment": str(experiment), "live": live, "ssh": {}}
        entry["nodes"] = [{"name": n.name, "host": n.host, "port": n.port, "user": n.user, "key": n.key} for n in nodes]
        (self.launches / f"{run_id}.json").write_text(json.dumps(entry))
        record = {"run_id": run_id, "state": state, "timings": {"launched": f"{year}-11-{day:02d}T00:00:00Z"}}
        (experiment / "run.json").write_text(json.dumps(record))
        (experiment / "rank_0000.out").write_bytes(b"x" * LOG)
        for k in self.cluster.numbers:
            folder = self.run_folder(k, run_id)
            (folder / "ranks" / "deep" / "er").mkdir(parents=True)
            (folder / "ranks" / "deep" / "er" / "stdout.log").write_bytes(b"x" * LOG)
            (folder / "status.json").write_text(json.dumps({"run_id": run_id, "state": state}))
        return run_id

    def run_folder(self, k: int, run_id: str) -> Path:
        """The run folder of a run on node k, as this machine sees it."""
        return self.cluster.home(k) / ".aorta" / "runs" / run_id / str(k - 1)

    def prune(self, *words: str, timeout_s: float = 60) -> Completed:
        """Run `prune` to its end."""
        return self.scene.verb("prune", *words, timeout_s=timeout_s)

    def holders(self, run_id: str) -> set[str]:
        """Where something of a run lies: here, entry, or the number of a node."""
        found = {str(k) for k in self.cluster.numbers if self.run_folder(k, run_id).parent.exists()}
        found |= {"here"} if (self.scene.project / "experiments" / run_id).exists() else set()
        return found | ({"entry"} if list(self.launches.glob(f"{run_id}*")) else set())


def count_logins(cluster: Cluster) -> dict[int, int]:
    """How many logins each node has seen."""
    return {k: (cluster.folder(k) / "sshd.log").read_text().count("Accepted ") for k in cluster.numbers}


@pytest.mark.long
def test_prune_leaves_a_live_run_among_the_old_ones(nodes3: Cluster, tmp_path: Path) -> None:
    house = House(nodes3, tmp_path)
    scene = house.scene
    scene.write("quick.py", QUICK)
    scene.write("sleep.py", SLEEP)
    live = scene.start("--label", "live", "sleep.py")
    wait_running(live, 3)
    done = scene.launch("--label", "older", "quick.py")
    assert done.exit_code == 0, done
    (lived,), (older,) = (
        [path.name for path in scene.runs() if path.name.startswith(word)] for word in ("live", "older")
    )
    newer = house.plant("newer", 28, year=2099)
    listed = scene.verb("ls")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["RUN", lived, older, newer], listed
    assert "no controller" not in listed.stdout

    begin = time.monotonic()
    done = house.prune("--keep", "1", "--yes")
    print(f"prune of 1 run on 3 nodes: {time.monotonic() - begin:.2f} s\n{done.stdout}")
    assert done.exit_code == 0, done
    assert f"not over, left alone: {lived}" in done.stdout
    everywhere = {"here", "entry", "1", "2", "3"}
    assert (house.holders(older), house.holders(newer), house.holders(lived)) == (set(), everywhere, everywhere)

    again = house.prune("--keep", "1", "--yes")
    assert (again.exit_code, house.holders(newer), house.holders(lived)) == (0, everywhere, everywhere), again
    assert live.running
    live.press_ctrl_c()
    assert live.wait(60).exit_code == 130
    assert house.prune("--keep", "0", "--yes").exit_code == 0
    assert house.holders(newer) == house.holders(lived) == set()
    assert list(house.launches.iterdir()) == []
    assert scene.verb("ls").stderr == "no run is remembered on this machine\n"


def test_prune_says_what_it_frees_asks_and_follows_no_link(nodes3: Cluster, tmp_path: Path) -> None:
    house = House(nodes3, tmp_path)
    old, new = house.plant("old", 1), house.plant("new", 2)
    outside = house.cluster.home(1) / "precious"
    outside.mkdir(exist_ok=True)
    (outside / "data").write_text("mine")
    folder = house.run_folder(1, old)
    (folder / "link").symlink_to("../../../../precious")
    (folder / "ranks" / "file").symlink_to("/etc/passwd")
    (folder / "ranks" / "closed").mkdir(mode=0)
    for name in ("lock", "sock"):
        (house.launches / f"{old}.{name}").touch()
    (house.launches / f"{old}.tree").mkdir()
    (house.launches / f"{old}.tree" / "rows").touch()

    before = house.prune("--keep", "1", "--dry-run")
    assert before.exit_code == 0, before
    assert before.stdout.startswith(f"2 finished runs: the newest 1 stay, 1 can go ({old})\n")
    for where in ("here", *(nodes3.address(k) for k in nodes3.numbers)):
        (line,) = (line for line in before.stdout.splitlines() if line.split()[0] == where)
        assert 97 < float(line.split()[1]) < 140, line
        assert line.split()[2] == "KiB"
    asked = house.prune("--keep", "1")
    assert asked.exit_code == 2, asked
    assert "nobody can be asked" in asked.stderr
    assert house.holders(old) == {"here", "entry", "1", "2", "3"}

    freed = house.prune("--keep", "1", "--yes", "--nodes-only")
    assert (freed.exit_code, house.holders(old)) == (0, {"here", "entry"}), freed
    done = house.prune("--keep", "1", "--yes", "--json")
    assert (done.exit_code, house.holders(old)) == (0, set()), done
    told = json.loads(done.stdout)
    assert [(run["run_id"], run["removed"]) for run in told["runs"]] == [(old, True)]
    assert (told["kept"], told["done"], len(told["nodes"])) == ([new], True, 3)
    assert (outside / "data").read_text() == "mine"
    assert house.holders(new) == {"here", "entry", "1", "2", "3"}


@pytest.mark.long
def test_prune_takes_one_connection_a_node(nodes3: Cluster, tmp_path: Path) -> None:
    house = House(nodes3, tmp_path)
    old = [house.plant("old", day) for day in range(1, 21)]
    logins = count_logins(nodes3)
    done = house.prune("--keep", "0", "--yes")
    print(f"prune of {len(old)} runs on 3 nodes: {done.seconds:.2f} s")
    assert done.exit_code == 0, done
    expected = {k: number + 1 for k, number in logins.items()}
    wait_for(lambda: count_logins(nodes3) == expected, 5, "one login a node")
    assert not any(house.holders(run_id) for run_id in old)


@pytest.mark.long
def test_prune_leaves_whole_what_lives_on_a_node_or_has_a_controller(nodes3: Cluster, tmp_path: Path) -> None:
    house = House(nodes3, tmp_path)
    marked, controlled, foreign = house.plant("marked", 1), house.plant("controlled", 2), house.plant("foreign", 3)
    everywhere = {"here", "entry", "1", "2", "3"}
    # A folder that does not hold this run's record is not ours to remove.
    (house.scene.project / "experiments" / foreign / "run.json").write_text('{"run_id": "another"}')
    keeper = nodes3.exec(2, ["sh", "-c", f"AORTA_RUN_ID={marked} setsid sleep 600 >/dev/null 2>&1 & echo $!"])
    try:
        with (house.launches / f"{controlled}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = house.prune("--keep", "0", "--yes")
    finally:
        nodes3.kill_process(2, int(keeper.stdout))
    assert done.exit_code == 1, done
    assert (
        f"{marked} is left alone: it lives on {nodes3.address(2)}: pid {keeper.stdout.strip()}  sleep 600"
        in done.stdout
    )
    assert (house.holders(marked), house.holders(controlled)) == (everywhere, everywhere)
    assert house.holders(foreign) == {"here"}, "what prune does not know stays"
    assert "stays: it holds no run.json of this run" in done.stdout

    rest = house.prune("--keep", "0", "--yes")
    assert rest.exit_code == 0, rest
    assert house.holders(marked) == house.holders(controlled) == set()


@pytest.mark.long
def test_a_node_that_is_down_keeps_its_runs_entries_until_the_next_prune(
    fresh_cluster: FreshCluster, tmp_path: Path
) -> None:
    cluster = fresh_cluster(2)
    house = House(cluster, tmp_path)
    old = [house.plant("old", day) for day in (1, 2)]
    cluster.stop_sshd(2)
    done = house.prune("--keep", "0", "--yes")
    assert done.exit_code == 1, done
    assert f"{cluster.address(2)}  ?" in done.stdout
    assert "not reached, 2 run folders there stay" in done.stdout
    assert [house.holders(run_id) for run_id in old] == [{"entry", "2"}] * 2
    listed = scene_lines(house)
    assert all("its experiment directory is gone" in line for line in listed)
    cluster.start_sshd(2)
    rest = house.prune("--keep", "0", "--yes")
    assert rest.exit_code == 0, rest
    assert [house.holders(run_id) for run_id in old] == [set(), set()]


def scene_lines(house: House) -> list[str]:
    """The lines of `ls` without its head."""
    return house.scene.verb("ls").stdout.splitlines()[1:]


def test_ls_and_note_with_broken_entries_contact_no_node(nodes3: Cluster, tmp_path: Path) -> None:
    house = House(nodes3, tmp_path)
    good = house.plant("good", 5)
    going = house.plant("going", 6, live=True, state="running")
    (house.launches / "broken.json").write_text("{")
    logins = count_logins(nodes3)
    noted = house.scene.verb("note", "good", "baseline;", "lr 3e-4")
    assert (noted.exit_code, noted.stderr) == (0, f"noted on {good}\n"), noted
    assert house.scene.verb("note", "good").exit_code == 2
    assert house.scene.verb("note", "nothing", "x").exit_code == 2
    done = house.scene.verb("ls")
    assert done.exit_code == 0, done
    rows = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert list(rows) == [good, going, "broken"]
    assert rows[good].endswith("succeeded · note: baseline; lr 3e-4")
    assert rows[going].endswith(f"running · no controller: aorta-launch attach {going}")
    assert "its entry cannot be read" in rows["broken"]
    told = json.loads(house.scene.verb("ls", "--json").stdout)["runs"]
    assert [run["run_id"] for run in told] == [good, going, "broken"]
    assert count_logins(nodes3) == logins
    # The launch host is shared: another test's run has to be the only live one.
    for name in (good, going, "broken"):
        (house.launches / f"{name}.json").unlink()


@pytest.mark.long
def test_outputs_that_did_not_come_are_fetched_by_attach_and_spared_by_prune(nodes3: Cluster, tmp_path: Path) -> None:
    house = House(nodes3, tmp_path)
    scene = house.scene
    scene.write("late.py", LATE)
    over = f"/tmp/over_{tmp_path.name[-8:]}"
    launcher = scene.start("late.py", over)
    wait_running(launcher, 3)
    run_id, outputs = scene.experiment.name, scene.experiment / "outputs"
    outputs.rmdir()
    outputs.write_text("in the way")
    (scene.experiment / ".aorta-collect-killed").mkdir()
    for k in nodes3.numbers:
        assert nodes3.exec(k, ["touch", over]).returncode == 0
    done = launcher.wait(60)
    assert done.exit_code == 0, done
    assert f"aorta-launch attach {run_id}" in done.stderr
    record = scene.run_json()
    assert "collected" not in record["timings"]
    assert record["not_collected"] == [nodes3.address(k) for k in nodes3.numbers]

    spared = house.prune("--keep", "0", "--yes")
    assert (spared.exit_code, house.holders(run_id)) == (0, {"here", "entry", "1", "2", "3"}), spared
    assert f"its outputs are not here yet: aorta-launch attach {run_id}" in spared.stdout

    outputs.unlink()
    again = scene.verb("attach", run_id)
    assert (again.exit_code, [answer["rank"] for answer in scene.answers()]) == (0, [0, 1, 2]), again
    assert "SUCCEEDED" in again.stderr
    record = scene.run_json()
    assert (record["not_collected"], "collected" in record["timings"]) == ([], True)
    assert not list(scene.experiment.glob(".aorta-collect-*"))
    assert house.prune("--keep", "0", "--yes").exit_code == 0
    assert house.holders(run_id) == set()
