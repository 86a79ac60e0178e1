"""Runs that hang, with the real torchrun: who is odd is named with its stack, the evidence is kept, and nothing is stopped unasked."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from cluster import Cluster, Launcher, wait_for
from scenes import Scene

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ROUNDS = """
import os, sys, threading, time
import torch
import torch.distributed as dist

SHELF = threading.Lock()


def take_from_shelf():
    with SHELF:
        return put_on_shelf()


def put_on_shelf():
    with SHELF:
        return 1


def wait_for_courier():
    time.sleep(3600)


def count_corners():
    dist.all_reduce(torch.ones(16, 4))


TROUBLES = {"sleep": wait_for_courier, "lock": take_from_shelf, "shape": count_corners}


def play(rank, trouble):
    for turn in range(1, 1000):
        if turn == 4 and rank == int(sys.argv[2]):
            trouble()
        parts = [torch.zeros(64) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.full((64,), float(rank)))
        print("step", turn, flush=True)


torch.set_num_threads(1)
dist.init_process_group("gloo")
play(dist.get_rank(), TROUBLES[sys.argv[1]])
"""
AFTER_S = 3.0
LATE_S = 15.0
"""The odd rank is named within this time after hang.after_s, on two cores."""
LINES = {name: next(n for n, line in enumerate(ROUNDS.splitlines(), 1) if line.startswith(f"def {name}")) for name in (
    "take_from_shelf", "put_on_shelf", "wait_for_courier", "count_corners")}  # fmt: skip


def start(scene: Scene, trouble: str, odd: int, *words: str) -> Launcher:
    scene.write("rounds.py", ROUNDS)
    quick = ["--hang-after", f"{AFTER_S:g}s", "--grace", "2s", "--env", "OMP_NUM_THREADS=1", *words]
    return scene.start(*quick, "rounds.py", trouble, str(odd))


def wait_named(scene: Scene, launcher: Launcher | None = None) -> dict[str, Any]:
    """Wait for the report of the hang; give what was noted of it."""

    def told() -> list[dict[str, Any]]:
        return scene.events("hang") if list(scene.project.glob("experiments/*/events.jsonl")) else []

    wait_for(lambda: bool(told()), 150, lambda: f"no hang was noted\n{launcher.stderr if launcher else ''}")
    (event,) = told()
    late_s = event["at"] - event["since"] - AFTER_S
    print(f"{event['cause']}: named {late_s:.1f} s after hang.after_s")
    assert late_s < LATE_S, event
    return event


def check_named(scene: Scene, event: dict[str, Any], rank: int, function: str, family: str = "HANG") -> None:
    assert (event["family"], event["ranks"]) == (family, [rank]), event
    assert event["where"] == f"rounds.py:{LINES[function] + 1} in {function}", event
    folder = scene.experiment / "diagnosis" / "hang_1"
    text = (folder / "stacks" / f"rank_{rank:04d}.txt").read_text()
    assert function in text
    assert len(list((folder / "stacks").iterdir())) == 8
    assert f"rank {rank} (node " in (folder / "report.txt").read_text()


def check_alive(scene: Scene, nodes: Sequence[int]) -> None:
    assert all(len(scene.pids(k, "rounds.py")) >= 3 for k in nodes), "an agent and its ranks"


def test_a_rank_that_sleeps_is_named_and_nothing_is_stopped(nodes3: Cluster, tmp_path: Any) -> None:
    slots = {1: "slots=3", 2: "slots=2", 3: "slots=3"}
    scene = Scene(nodes3, tmp_path, python=nodes3.python, extra=slots)
    launcher = start(scene, "sleep", 4, "--rank-hook")
    event = wait_named(scene, launcher)
    check_named(scene, event, 4, "wait_for_courier")
    assert event["cause"].startswith("7 ranks wait in all_gather")
    launcher.wait_for_text("HANG since", 10)
    assert f"rank 4 (node 1 {nodes3.address(2)}, local rank 1)" in launcher.stderr
    check_alive(scene, nodes3.numbers)

    begin = time.monotonic()
    done = scene.verb("stacks", "--save")
    print(f"stacks: {time.monotonic() - begin:.1f} s")
    assert done.exit_code == 0, done
    assert "ranks 0-3, 5-7  wait in all_gather (rounds.py:" in done.stdout
    assert "rank 4  in wait_for_courier (rounds.py:" in done.stdout
    (kept,) = (scene.experiment / "diagnosis").glob("stacks_*")
    assert len(list(kept.glob("rank_*.txt"))) == 8

    launcher.kill()
    straight = json.loads(scene.verb("stacks", "--json").stdout)
    assert {group["doing"]: group["ranks"] for group in straight["groups"]} == {
        "all_gather": [0, 1, 2, 3, 5, 6, 7],
        "wait_for_courier": [4],
    }
    check_alive(scene, nodes3.numbers)
    assert scene.verb("kill", "--grace", "2s").exit_code == 0
    scene.wait_empty(10)
    assert [hang["ranks"] for hang in scene.run_json()["hangs"]] == [[4]]


@pytest.mark.long
def test_with_stop_a_collective_of_another_shape_ends_the_run(nodes3: Cluster, tmp_path: Any) -> None:
    scene = Scene(nodes3, tmp_path, python=nodes3.python, extra={1: "slots=3", 2: "slots=2", 3: "slots=3"})
    launcher = start(scene, "shape", 6, "--rank-hook", "--hang-action", "stop")
    check_named(scene, wait_named(scene, launcher), 6, "count_corners", "MISMATCH")
    done = launcher.wait(60)
    assert done.exit_code == 1, done
    verdict = scene.verdict()
    assert (verdict["state"], verdict["family"], verdict["first_failure"]["rank"]) == ("failed", "MISMATCH", 6), verdict
    assert sorted(verdict["stopped"]) == [0, 1, 2, 3, 4, 5, 7]
    assert "MISMATCH" in (scene.experiment / "run.json").read_text()
    scene.wait_empty(10)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["foreground", "detach", "taken over"])
def test_a_dead_lock_is_named_whoever_watches(nodes3: Cluster, tmp_path: Any, mode: str) -> None:
    scene = Scene(nodes3, tmp_path, python=nodes3.python, extra={1: "slots=3", 2: "slots=2", 3: "slots=3"})
    launcher = start(scene, "lock", 5, "--rank-hook", *(["--detach"] if mode == "detach" else []))
    if mode == "taken over":
        launcher.wait_for_text("step 1", 90)
        launcher.kill()
        attached = scene.cluster.start_launcher(["attach"], cwd=scene.project)
        attached.wait_for_text("step", 60)
    event = wait_named(scene)
    check_named(scene, event, 5, "put_on_shelf")
    check_alive(scene, nodes3.numbers)
    assert scene.verb("kill", "--grace", "2s").exit_code == 0
    scene.wait_empty(10)


@pytest.mark.long
def test_without_the_hook_the_kernel_alone_tells_who_sleeps(nodes3: Cluster, tmp_path: Any) -> None:
    scene = Scene(nodes3, tmp_path, python=nodes3.python, extra={1: "slots=3", 2: "slots=2", 3: "slots=3"})
    launcher = start(scene, "sleep", 2)
    event = wait_named(scene, launcher)
    assert event["ranks"] == [2], event
    assert scene.verb("kill", "--grace", "2s").exit_code == 0
    scene.wait_empty(10)
