"""Two at once on the same nodes: one second, two launch hosts, two users; and code that a live run uses stays as it is."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Launcher, wait_for
from scenes import Scene, wait_running

COUNT = """
import os, time
print("rank", os.environ["RANK"], os.environ["AORTA_RUN_ID"], os.environ["MASTER_PORT"], os.getcwd(), flush=True)
for number in range(20000):
    print(number, flush=True)
    time.sleep(0.03)
"""
LINE = re.compile(r"rank (\d+) (\S+) (\d+) (\S+)\n")
GIVE_PYTHON = """
set -e
version=$(/usr/bin/python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
mkdir -p "$1/bin" "$1/lib/$version"
ln -sf /usr/bin/python3 "$1/bin/python3"
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$1/pyvenv.cfg"
cp -r "$2"/lib/python3*/site-packages "$1/lib/$version/"
chmod -R a+rX "$1"
"""
"""The stand-in for torch with a Python that every user may run."""
GRACE = ("--grace", "3s")


def make_scene(cluster: Cluster, folder: Path, *scripts: str, **extra: Any) -> Scene:
    folder.mkdir(parents=True)
    scene = Scene(cluster, folder, **extra)
    for script in scripts:
        scene.write(script, COUNT)
    return scene


def run_id_of(launcher: Launcher) -> str:
    match = re.search(r"experiments/(\S+)", launcher.stderr)
    assert match, launcher.stderr
    return match[1]


def first_lines(scene: Scene, run_id: str, ranks: int) -> list[tuple[str, str, str]]:
    """What every rank of a run said of itself: its run, port and working directory."""
    logs = [scene.project / "experiments" / run_id / f"logs/rank_{rank:04d}.out" for rank in range(ranks)]
    wait_for(lambda: all(log.exists() and log.read_bytes().count(b"\n") > 1 for log in logs), 30, "all ranks count")
    found = []
    for rank, log in enumerate(logs):
        match = LINE.match(log.read_text())
        assert match, log
        assert int(match[1]) == rank
        found.append((match[2], match[3], match[4]))
    return found


def pids_of(scene: Scene, run_id: str, script: str) -> dict[int, list[int]]:
    """The supervisor, agent and ranks of one run on every node."""
    return {k: sorted({*scene.pids(k, run_id), *scene.pids(k, script)}) for k in scene.cluster.numbers}


def check_bytes(cluster: Cluster, scene: Scene, run_id: str, home: str = "") -> None:
    """What lies here of every rank is what it wrote there, and counts without a hole."""
    for k in cluster.numbers:
        files = f"{home or '$HOME'}/.aorta/runs/{run_id}/{k - 1}/ranks/*/attempt_0/0/stdout.log"
        there = cluster.exec(k, ["sh", "-c", f"cat {files}"]).stdout
        here = (scene.project / f"experiments/{run_id}/logs/rank_{k - 1:04d}.out").read_text()
        assert here == there
        numbers = [int(line) for line in here.splitlines()[1:]]
        assert numbers == list(range(len(numbers)))


def end(launcher: Launcher) -> None:
    launcher.press_ctrl_c()
    assert launcher.wait(60).exit_code == 130


def end_last(scene: Scene, launcher: Launcher) -> None:
    end(launcher)
    scene.wait_empty(10)


@pytest.mark.namespaces
def test_the_same_project_twice_in_one_second_and_a_kill_of_one(nodes3: Cluster, tmp_path: Path) -> None:
    """Neither was there before: one brings the code, the other waits for it; then one is killed."""
    scene = make_scene(nodes3, tmp_path / "twice", "count_a.py", "count_b.py")
    one = scene.start(*GRACE, "--label", "one", "count_a.py")
    two = scene.start(*GRACE, "--label", "two", "count_b.py")
    wait_running(one, 3)
    wait_running(two, 3)
    ids = [run_id_of(one), run_id_of(two)]
    said = [first_lines(scene, run_id, 3) for run_id in ids]
    assert [{line[0] for line in lines} for lines in said] == [{ids[0]}, {ids[1]}]
    ports = [{line[1] for line in lines} for lines in said]
    assert len(ports[0]) == len(ports[1]) == 1
    assert ports[0] != ports[1]
    assert len({line[2] for lines in said for line in lines}) == 1, "equal code is there once"

    before = pids_of(scene, ids[1], "count_b.py")
    assert all(len(pids) >= 3 for pids in before.values())
    killed = scene.verb("kill", ids[0], *GRACE)
    assert killed.exit_code == 0, killed
    assert killed.stdout.count("none left") == 3
    assert one.wait(30).exit_code == 143
    for k in nodes3.numbers:
        assert not scene.pids(k, ids[0])
        assert not scene.pids(k, "count_a.py")
    assert pids_of(scene, ids[1], "count_b.py") == before, "the other run was touched"
    size = (scene.project / f"experiments/{ids[1]}/logs/rank_0002.out").stat().st_size
    log = scene.project / f"experiments/{ids[1]}/logs/rank_0002.out"
    wait_for(lambda: log.stat().st_size > size + 20, 10, "the other run goes on")
    end_last(scene, two)
    for run_id in ids:
        check_bytes(nodes3, scene, run_id)


@pytest.mark.long
@pytest.mark.namespaces
def test_two_launch_hosts_with_projects_of_one_name(nodes3: Cluster, tmp_path: Path) -> None:
    """Each has its own HOME and its own code; both go their way, and a second launch of each finds its own folder."""
    here = make_scene(nodes3, tmp_path / "h1" / "same", "count_h1.py")
    there = make_scene(nodes3, tmp_path / "h2" / "same", "count_h2.py")
    assert here.project.name == there.project.name
    home = tmp_path / "home2"
    shutil.copytree(nodes3.launch_home / ".ssh", home / ".ssh")
    env = {"HOME": str(home)}
    one = here.start("-v", *GRACE, "count_h1.py")
    two = there.start("-v", *GRACE, "count_h2.py", env=env)
    wait_running(one, 3)
    wait_running(two, 3)
    ids = [run_id_of(one), run_id_of(two)]
    folders = [
        {line[2] for line in first_lines(scene, run_id, 3)} for scene, run_id in zip([here, there], ids, strict=True)
    ]
    assert [len(folder) for folder in folders] == [1, 1]
    assert folders[0] != folders[1]
    assert sum("another project of this name has its code on the nodes" in run.stderr for run in (one, two)) == 1
    before = pids_of(there, ids[1], "count_h2.py")
    killed = here.verb("kill", *GRACE)
    assert killed.exit_code == 0, killed
    assert one.wait(30).exit_code == 143
    assert pids_of(there, ids[1], "count_h2.py") == before
    end_last(there, two)
    check_bytes(nodes3, there, ids[1])

    # Each comes back to its own, which costs no copy; the plan knows it before.
    plan = there.launch("--print-commands", "count_h2.py", env=env)
    assert f"cd {folders[1].copy().pop()} " in plan.stdout, plan
    for scene, folder, words, own in ((here, folders[0], "count_h1.py", {}), (there, folders[1], "count_h2.py", env)):
        again = scene.start("-v", *GRACE, words, env=own)
        wait_running(again, 3)
        assert "pushing" not in again.stderr
        assert {line[2] for line in first_lines(scene, run_id_of(again), 3)} == folder
        end_last(scene, again)


@pytest.mark.long
@pytest.mark.namespaces
def test_two_users_on_the_same_nodes(nodes3: Cluster, tmp_path: Path) -> None:
    root = make_scene(nodes3, tmp_path / "u1" / "same", "count_u1.py")
    train = make_scene(nodes3, tmp_path / "u2" / "same", "count_u2.py")
    for k in nodes3.numbers:
        words = ["sh", "-c", GIVE_PYTHON, "sh", "/home/train/fake", str(nodes3.spec.root / "fake")]
        nodes3.exec(k, words).check_returncode()
    text = train.nodes.read_text().replace(nodes3.fake_python, "/home/train/fake/bin/python3")
    train.nodes.write_text(text.replace(f"user={nodes3.spec.user}", "user=train"))
    one = root.start(*GRACE, "count_u1.py")
    two = train.start(*GRACE, "count_u2.py")
    wait_running(one, 3)
    wait_running(two, 3)
    ids = [run_id_of(one), run_id_of(two)]
    assert {line[2] for line in first_lines(train, ids[1], 3)} == {f"/home/train/.aorta/code/{train.project.name}"}
    others = pids_of(root, ids[0], "count_u1.py")
    # The nodes tell each user of his own runs alone, also where root could see more.
    found = train.verb("kill", "--nodes", str(train.nodes), *GRACE)
    assert found.exit_code == 0, found
    assert ids[1] in found.stderr
    assert two.wait(30).exit_code == 143
    assert pids_of(root, ids[0], "count_u1.py") == others
    end_last(root, one)
    check_bytes(nodes3, root, ids[0])
    check_bytes(nodes3, train, ids[1], "/home/train")


@pytest.mark.long
@pytest.mark.namespaces
def test_code_that_a_live_run_uses_is_not_changed(nodes3: Cluster, tmp_path: Path) -> None:
    """Refused with the run's id and the way out; equal code is shared; nobody is kept out by the dead."""
    scene = make_scene(nodes3, tmp_path / "tree", "count_t.py", nodes=[1, 2])
    first = scene.start(*GRACE, "count_t.py")
    wait_running(first, 2)
    run_id = run_id_of(first)
    shared = scene.start(*GRACE, "--label", "shared", "count_t.py")
    wait_running(shared, 2)
    end(shared)

    scene.write("more.py", "x = 1\n")
    refused = scene.launch("count_t.py")
    assert refused.exit_code == 3, refused
    for text in (f"is used by the live run {run_id}", f"aorta-launch kill {run_id}", "--workdir", nodes3.address(1)):
        assert text in refused.stderr, refused
    assert first.running
    assert not nodes3.exec(1, ["sh", "-c", f"ls ~/.aorta/code/{scene.project.name}/more.py"]).stdout
    aside = scene.start(*GRACE, "--workdir", f"~/.aorta/code/{scene.project.name}-2", "count_t.py")
    wait_running(aside, 2)
    end(aside)

    # The launcher and all supervisors are killed: nothing holds the code any more, whatever still runs.
    first.kill()
    for k in (1, 2):
        nodes3.kill_process(k, scene.pids(k, f"{run_id}/{k - 1}/supervisor.py")[0], signal.SIGKILL)
        wait_for(lambda k=k: not scene.pids(k, "supervisor.py"), 10, "the supervisor is gone")  # type: ignore[misc]
    done = scene.start(*GRACE, "--no-check", "count_t.py")
    wait_running(done, 2)
    end(done)
    assert scene.verb("kill", run_id, *GRACE).exit_code == 0
    scene.wait_empty(10)


@pytest.mark.long
@pytest.mark.namespaces
def test_code_used_as_it_is_is_kept_too(nodes3: Cluster, tmp_path: Path) -> None:
    scene = make_scene(nodes3, tmp_path / "asis", "count_n.py", nodes=[3])
    warm = scene.start(*GRACE, "count_n.py")
    wait_running(warm, 1)
    end(warm)
    launcher = scene.start(*GRACE, "--no-push", "count_n.py")
    wait_running(launcher, 1)
    run_id = run_id_of(launcher)
    scene.write("more.py", "x = 1\n")
    refused = scene.launch("count_n.py")
    assert refused.exit_code == 3, refused
    assert f"is used by the live run {run_id}" in refused.stderr
    end_last(scene, launcher)
