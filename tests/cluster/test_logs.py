"""What ranks wrote, read again from another shell: while the run goes on, afterwards, and without a controller."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from cluster import Cluster, Completed, wait_for
from scenes import Scene, wait_running
from test_detach import controller_pid
from test_log_space import FLOOD, MIB, told_gaps

from orchestrator.phases.logtimes import GRAIN_S

TALK = r"""
import os, sys, time
rank = os.environ["RANK"]
sys.stdout.buffer.write(b"\xff raw of %s\n" % rank.encode())
print("first of", rank, flush=True)
print("complaint of", rank, file=sys.stderr, flush=True)
while not os.path.exists(os.path.expanduser("~/go_on")):
    time.sleep(0.05)
for number in range(20):
    print("later", number, "of", rank, flush=True)
    time.sleep(0.02)
sys.stdout.write("\rstep 1\rstep 2")
"""


def let_go(scene: Scene) -> None:
    for k in scene.cluster.spec.numbers:
        (scene.cluster.home(k) / "go_on").touch()


def hold(scene: Scene) -> None:
    for k in scene.cluster.spec.numbers:
        (scene.cluster.home(k) / "go_on").unlink(missing_ok=True)


def raw_of(rank: int) -> bytes:
    later = "".join(f"later {number} of {rank}\n" for number in range(20))
    return b"\xff raw of %d\n" % rank + f"first of {rank}\n{later}\rstep 1\rstep 2".encode()


def raw_logs(scene: Scene, *words: str) -> bytes:
    """The bytes that logs --raw writes."""
    out = scene.project / "raw"
    line = 'exec "$0" -m orchestrator logs "$@" >raw'
    done = scene.cluster.run_on_launch_host(["sh", "-c", line, sys.executable, *words], cwd=scene.project)
    assert (done.exit_code, done.stderr) == (0, ""), done
    return out.read_bytes()


def test_logs_of_a_run_as_it_goes_on_and_afterwards(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2, 3])
    scene.write("talk.py", TALK)
    hold(scene)
    launcher = scene.start("--nproc-per-node", "2", "talk.py")
    wait_running(launcher, 6)
    followers = [
        scene.cluster.start_launcher(["logs", "-f", *words], cwd=scene.project)
        for words in ([], ["--rank", "all"], ["--rank", "3", "--stream", "err"])
    ]
    for follower, text in zip(followers, ("first of 0", "first of 5", "complaint of 3"), strict=True):
        follower.wait_for_text(text, 60)
        assert follower.running
    now = scene.verb("logs", "--rank", "4")
    assert sorted(now.stdout.splitlines()) == ["[2:4] complaint of 4", "[2:4] first of 4", "[2:4] \ufffd raw of 4"]
    # What comes within the grain of the times shares one of them, and has no order among the ranks.
    shown = time.monotonic()
    wait_for(lambda: time.monotonic() > shown + GRAIN_S, 10 * GRAIN_S, "what comes next has a time of its own")
    let_go(scene)
    assert launcher.wait(60).exit_code == 0
    mine, everyone, complaints = [follower.wait(30) for follower in followers]
    assert [done.exit_code for done in (mine, everyone, complaints)] == [0, 0, 0]
    assert "[0:0] \ufffd raw of 0" in mine.stdout.splitlines()[:2]
    assert mine.stdout.splitlines()[-1] == "[0:0] step 2"
    assert complaints.stdout == "[1:3] complaint of 3\n"
    for rank in range(6):
        wanted = [f"later {number} of {rank}" for number in range(20)]
        prefix = f"[{rank // 2}:{rank}] "
        told = [line.removeprefix(prefix) for line in everyone.stdout.splitlines() if line.startswith(prefix)]
        assert [line for line in told if line.startswith("later")] == wanted
    assert len(mine.stdout.splitlines()) == len(everyone.stdout.splitlines()) / 6 == 24
    check_afterwards(scene, everyone)


def check_afterwards(scene: Scene, everyone: Completed) -> None:
    run = scene.experiment.name
    again = scene.verb("logs", run[:-2], "--rank", "all")
    assert again.exit_code == 0
    assert sorted(again.stdout.splitlines()) == sorted(everyone.stdout.splitlines())
    firsts = [line for line in again.stdout.splitlines() if " of " in line]
    assert all("later" not in line for line in firsts[:18]), "lines stand in the order in which they came"
    assert raw_logs(scene, run, "--rank", "3", "--raw") == raw_of(3)
    line = f'set -o pipefail; "{sys.executable}" -m orchestrator logs "$0" --rank all | head -n 1'
    head = scene.cluster.run_on_launch_host(["bash", "-c", line, run], cwd=scene.project)
    assert (head.exit_code, head.stdout.count("\n"), head.stderr) == (0, 1, "")


@pytest.mark.long
def test_since_shows_what_came_lately(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1])
    scene.write("talk.py", TALK)
    hold(scene)
    launcher = scene.start("talk.py")
    log = scene.project / "experiments"
    wait_for(lambda: any(b"first" in path.read_bytes() for path in log.glob("*/logs/rank_0000.out")), 60, "its first")
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() > begin + 1.2, 10, "older than the grain of the index")
    let_go(scene)
    assert launcher.wait(60).exit_code == 0
    times = scene.experiment / "logs/times/rank_0000.out"
    moments = [float(line.split()[0]) for line in times.read_text().splitlines()]
    assert moments == sorted(moments)
    assert time.time() - 120 < moments[0] < moments[-1] < time.time()
    # What came first is made an hour older than it is.
    times.write_text(times.read_text().replace(f"{moments[0]:.3f} ", f"{moments[0] - 3600:.3f} "))
    done = scene.verb("logs", scene.experiment.name, "--since", "30m", "--stream", "out")
    assert done.stdout.startswith("[0:0] later 0 of 0\n")
    assert done.stdout.count("\n") == 21


@pytest.mark.long
def test_without_a_controller_logs_are_fetched_first(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("talk.py", TALK)
    hold(scene)
    launcher = scene.start("--ranks", "all", "talk.py")
    wait_running(launcher, 2)
    launcher.wait_for_text("first of 1", 30)
    os.kill(controller_pid(scene, scene.experiment.name), signal.SIGKILL)
    launcher.process.wait()
    let_go(scene)
    later = [scene.cluster.home(k) / f".aorta/runs/{scene.experiment.name}/{k - 1}/ranks" for k in (1, 2)]
    wait_for(lambda: all(b"step 2" in file.read_bytes() for path in later for file in path.rglob("stdout.log")), 30, "all is written")  # fmt: skip
    done = scene.verb("logs", "--stream", "out")
    assert done.exit_code == 0, done
    assert done.stdout.count("\n") == 46
    followed = scene.verb("logs", scene.experiment.name, "-f", "--rank", "1")
    assert followed.exit_code == 0, followed
    assert scene.verdict()["state"] == "succeeded"
    for rank in (0, 1):
        assert (scene.experiment / f"logs/rank_{rank:04d}.out").read_bytes() == raw_of(rank)


def test_what_was_dropped_is_told_in_one_line(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1])
    scene.write("flood.py", FLOOD)
    nodes3.rate(1, "200mbit")  # a quarter of what the rank writes: the launch host cannot keep up, however quick it is
    try:
        done = scene.launch("flood.py", "2048", "60", "1e8", env={"AORTA_LAUNCH_LOG_SPACE_MIB": "4"})
    finally:
        nodes3.rate(1, None)
    assert done.exit_code == 0, done
    gaps = told_gaps(scene.experiment, "rank_0000.out")
    assert gaps
    run = scene.experiment.name
    shown = scene.verb("logs", run).stdout
    assert shown.count("were dropped here)\n") == len(gaps)
    assert "\0" not in shown
    missing = sum(end - start for start, end in gaps)
    line = f'"{sys.executable}" -m orchestrator logs "$0" --raw | wc -c'
    raw = scene.cluster.run_on_launch_host(["sh", "-c", line, run], cwd=scene.project)
    assert int(raw.stdout) == 128 * MIB - missing
    assert raw.stderr.count("were dropped here") == len(gaps)
