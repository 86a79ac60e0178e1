"""Things that break in mid-run: the verdict names the first, the others are stopped, and nothing is left anywhere."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from cluster import Cluster
from scenes import SLEEP, STUBBORN, THIEF, Scene, said_after, wait_running

RAISE = """
import os, time
out = os.environ["AORTA_OUTPUT_DIR"]
if os.environ["RANK"] == "3":
    time.sleep(1.5)
    open(os.path.join(out, "raised_at"), "w").write(repr(time.time()))
    raise RuntimeError("boom of the test")
time.sleep(600)
"""
ENDS = """
import os, signal, time
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    {how}
time.sleep(600)
"""
DAEMONS = """
import os, subprocess, sys, time
words = [sys.executable, "-c", "import time; time.sleep(600)  # daemon"]
null = subprocess.DEVNULL
subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)
subprocess.Popen(["env", "-i", "setsid", *words], stdin=null, stdout=null, stderr=null)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, words, {})
    os._exit(0)
time.sleep(0.3)
print("daemons are out", flush=True)
"""
FAILURE_GRACE_S = 2.0


def test_a_rank_that_raises_is_named_within_3_s_and_all_nodes_are_empty_within_grace_and_5_s(
    nodes3: Cluster, tmp_path: Path
) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("raise.py", RAISE)
    launcher = scene.start("--nproc-per-node", "2", "raise.py")
    launcher.wait_for_text("first failure: rank 3 on node 1", 90)
    named = time.time()
    raised = float(newest(nodes3, 2, "raised_at").read_text())
    assert "RuntimeError: boom of the test" in launcher.stderr
    scene.wait_empty(30)
    empty = time.time()
    done = launcher.wait(30)
    print(f"named {named - raised:.2f} s after the raise, every node empty {empty - raised:.2f} s after it")
    assert named - raised < 3
    assert empty - raised < FAILURE_GRACE_S + 5
    assert done.exit_code == 1, done
    verdict = scene.verdict()
    assert verdict["state"] == "failed"
    assert (verdict["first_failure"]["rank"], verdict["first_failure"]["node_rank"]) == (3, 1)
    assert verdict["first_failure"]["node"] == nodes3.address(2)
    assert verdict["stopped"] == [0, 1, 2, 4, 5]
    assert verdict["survivors"] == []
    assert "rank 3 (node 1" in done.stderr


def newest(cluster: Cluster, k: int, name: str) -> Path:
    return max(cluster.home(k).glob(f".aorta/runs/*/*/outputs/{name}"), key=lambda path: path.stat().st_mtime)


ENDINGS = [
    ("os._exit(7)", 7, None, "exit code 7"),
    ("os.kill(os.getpid(), signal.SIGKILL)", None, "SIGKILL", "killed by SIGKILL"),
    ("import not_installed_here", 1, None, "ModuleNotFoundError: No module named 'not_installed_here'"),
]


def test_the_ranks_own_end_is_told(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    for number, (how, *_) in enumerate(ENDINGS):
        scene.write(f"ends{number}.py", ENDS.format(how=how))
    launchers = []
    for number in range(len(ENDINGS)):
        # Side by side on the same nodes: runs do not disturb each other.
        launchers.append(scene.start("--label", f"run{number}", f"ends{number}.py"))
        launchers[-1].wait_for_text("rendezvous at", 60)
    for number, (launcher, (_, code, signal, cause)) in enumerate(zip(launchers, ENDINGS, strict=True)):
        done = launcher.wait(90)
        assert done.exit_code == 1, done
        (root,) = (path for path in scene.runs() if path.name.startswith(f"run{number}_"))
        verdict = json.loads((root / "run.json").read_text())["verdict"]
        first = verdict["first_failure"]
        assert (first["rank"], first["node_rank"], first["exit_code"], first["signal"]) == (1, 1, code, signal)
        assert cause in f"{verdict['cause']} {first['error']}"
        assert verdict["stopped"] == [0]
    scene.wait_empty(10)


@pytest.mark.long
@pytest.mark.parametrize("victims", [["agent"], ["supervisor"], ["supervisor", "agent"]])
def test_our_own_processes_are_killed(nodes3: Cluster, tmp_path: Path, victims: list[str]) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("sleep.py", SLEEP)
    launcher = scene.start("--nproc-per-node", "2", "sleep.py")
    wait_running(launcher, 4)
    texts = {"agent": "torch.distributed.run", "supervisor": "supervisor.py"}
    pids = [pid for victim in victims for pid in scene.pids(2, texts[victim])]
    assert len(pids) == len(victims)
    begin = time.time()
    nodes3.exec(2, ["sh", "-c", f"kill -9 {' '.join(map(str, pids))}"])
    named_s = said_after(launcher, "stopping the other nodes", begin)
    scene.wait_empty(30)
    empty_s = time.time() - begin
    done = launcher.wait(30)
    print(f"{' and '.join(victims)} killed: named after {named_s:.2f} s, nodes empty after {empty_s:.2f} s")
    assert done.exit_code == 1, done
    assert named_s < 3
    assert empty_s < FAILURE_GRACE_S + 5
    verdict = scene.verdict()
    assert verdict["first_failure"]["node_rank"] == 1
    assert ("supervisor was killed" if victims[0] == "supervisor" else "agent was killed by SIGKILL") in verdict[
        "cause"
    ]


def test_the_time_limit_stops_ranks_that_are_deaf_with_all_that_they_started(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("deaf.py", STUBBORN)
    done = scene.launch("--timeout", "4s", "--grace", "2s", "deaf.py")
    assert done.exit_code == 124, done
    assert scene.verdict()["state"] == "timed out"
    assert "is deaf" in (scene.experiment / "logs/rank_0001.out").read_text()
    ran_s = scene.verdict()["duration_s"]
    print(f"time limit 4 s, grace 2 s: over after {ran_s:.2f} s")
    assert ran_s < 4 + 2 + 2
    scene.wait_empty(2)


def test_daemons_that_a_good_run_leaves_are_gone(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("daemons.py", DAEMONS)
    done = scene.launch("daemons.py")
    assert done.exit_code == 0, done
    assert "daemons are out" in done.stdout
    scene.wait_empty(10)
    assert {event["killed"] for event in scene.events("final")} == {3}


@pytest.mark.namespaces
def test_a_master_port_that_is_taken_is_found_before_the_start(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("sleep.py", SLEEP)
    done = scene.launch("--master-port", str(nodes3.spec.ssh_port), "sleep.py")
    assert done.exit_code == 3, done
    assert "--master-port" in done.stderr
    assert scene.runs() == []
    scene.wait_empty(5)


@pytest.mark.namespaces
def test_a_port_that_is_taken_between_check_and_start_costs_another_start(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("hello.py", 'print("hello")\n')
    # Its start takes longer than a run of a stand-in: it is up before, and only the port is missing.
    thief = subprocess.Popen(
        ["nsenter", "-t", str(nodes3.pid(1)), "-n", "python3", "-c", THIEF],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert thief.stdin is not None
    assert thief.stdout is not None
    assert thief.stdout.readline() == "ready\n"
    launcher = scene.start("hello.py")
    launcher.wait_for_text(" port ", 60)
    port = launcher.stderr.split(" port ")[1].split()[0]
    thief.stdin.write(f"{port}\n")
    thief.stdin.flush()
    try:
        done = launcher.wait(90)
        assert done.exit_code == 0, done
        assert f"port {port} was taken" in done.stderr
        assert [event["number"] for event in scene.events("attempt")] == [1, 2]
        assert (scene.experiment / "logs/rank_0001.out").read_text() == "hello\n"
        assert "EADDRINUSE" in (scene.experiment / "logs_attempt_1/agent_0.err").read_text()
        scene.wait_empty(5)
    finally:
        thief.kill()
        thief.wait()
