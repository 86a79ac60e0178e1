"""The workload through the launcher, on real nodes: it learns, it is stopped and goes on, it loses a node and goes on."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from conftest import FreshCluster
from scenes import Scene

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.namespaces, pytest.mark.torch, pytest.mark.timeout(400)]

PROJECT = Path(__file__).resolve().parents[2]
SHARED = "/mnt/checkpoints"
CONFIG = """
launch:
  script: scripts/train.py
  args: [--config, "{config}"]
  label: goes_on
  env: {OMP_NUM_THREADS: 1}
training: {max_steps: 60, batch_size: 4, eval_interval: 60, log_interval: 1, seed: 3}
checkpoint: {dir: DIR, interval: 10, keep: 2}
model: {model_dim: 16, num_layers: 1, num_heads: 2, dropout: 0.1}
"""


def build_scene(cluster: Cluster, tmp_path: Path, *, nodes: tuple[int, ...] = (1, 2)) -> Scene:
    """A project that holds scripts/ and config/ alone, as far as a node can see."""
    scene = Scene(cluster, tmp_path, python=cluster.python, nodes=nodes)
    for name in ("scripts", "config"):
        shutil.copytree(PROJECT / name, scene.project / name, ignore=shutil.ignore_patterns("__pycache__"))
    return scene


def read_metrics(experiment: Path) -> dict[int, list[dict[str, Any]]]:
    """Every rank's lines, by rank."""
    found = {}
    for path in sorted((experiment / "outputs").rglob("rank_*_metrics.jsonl")):
        found[int(path.name.split("_")[1])] = [json.loads(line) for line in path.read_text().splitlines()]
    return found


def losses(lines: list[dict[str, Any]]) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines if line.get("loss") is not None}


def test_two_nodes_learn_what_holds_for_data_never_seen(nodes3: Cluster, tmp_path: Path) -> None:
    scene = build_scene(nodes3, tmp_path)
    done = scene.launch("--config", "config/two_nodes.yaml", "--env", "OMP_NUM_THREADS=1", timeout_s=180)
    assert done.exit_code == 0, done
    metrics = read_metrics(scene.experiment)
    assert sorted(metrics) == [0, 1]
    held_out = [line["held_out_loss"] for line in metrics[0] if line.get("held_out_loss") is not None]
    print("held-out loss:", held_out)
    assert held_out[-1] < held_out[0] / 2
    assert [line["node_rank"] for line in (metrics[0][0], metrics[1][0])] == [0, 1]


def test_a_stopped_run_saves_at_one_step_and_goes_on_there(nodes3: Cluster, tmp_path: Path) -> None:
    scene = build_scene(nodes3, tmp_path)
    scene.write("long.yaml", CONFIG.replace("DIR", "stopped").replace("max_steps: 60", "max_steps: 100000"))
    launcher = scene.start("--config", "long.yaml", "--grace", "30")
    launcher.wait_for_text("step 15 of", 90)
    launcher.send_signal(signal.SIGTERM)
    done = launcher.wait(60)
    assert done.exit_code == 143, done
    exits = [event for event in scene.events() if event["kind"] == "rank_exit"]
    assert {event["rank"]: event["code"] for event in exits} == {0: 0, 1: 0}, exits
    metrics = read_metrics(scene.experiment)
    last = {max(losses(lines)) for lines in metrics.values()}
    assert len(last) == 1, last
    (step,) = last
    again = scene.launch("--config", "long.yaml", "--set", f"training.max_steps={step + 3}", timeout_s=120)
    assert again.exit_code == 0, again
    assert [sorted(losses(lines)) for lines in read_metrics(scene.runs()[-1]).values()] == [
        [step + 1, step + 2, step + 3]
    ] * 2


def test_usr1_asks_all_ranks_to_end_early_and_well(nodes3: Cluster, tmp_path: Path) -> None:
    scene = build_scene(nodes3, tmp_path)
    scene.write("long.yaml", CONFIG.replace("DIR", "early").replace("max_steps: 60", "max_steps: 100000"))
    launcher = scene.start("--config", "long.yaml")
    launcher.wait_for_text("step 5 of", 90)
    asked = scene.verb("kill", "--signal", "USR1", "--yes")
    assert asked.exit_code == 0, asked
    done = launcher.wait(60)
    assert done.exit_code == 0, done
    assert "stopped after step" in done.stdout
    assert len({max(losses(lines)) for lines in read_metrics(scene.experiment).values()}) == 1


@pytest.mark.parametrize(
    "shared", [pytest.param(False, id="separate disks"), pytest.param(True, id="shared disk", marks=pytest.mark.long)]
)
def test_a_run_that_lost_a_node_goes_on_from_the_last_checkpoint_with_another(
    fresh_cluster: FreshCluster, tmp_path: Path, *, shared: bool
) -> None:
    cluster = fresh_cluster(3, shared={SHARED: (1, 2, 3)} if shared else {})
    config = CONFIG.replace("DIR", f"{SHARED}/mine" if shared else "mine")
    scene = build_scene(cluster, tmp_path)
    scene.write("run.yaml", config)
    launcher = scene.start("--config", "run.yaml", "--set", "launch.lost_after_s=3")
    launcher.wait_for_text("step 23 of", 120)
    cluster.kill_node(2)
    broken = launcher.wait(120)
    assert broken.exit_code == 4, broken
    reached = max(losses(read_metrics(scene.experiment)[0]))

    # A machine that never saw the run takes the lost one's place.
    cluster.write_list(scene.nodes, python=cluster.python, nodes=(1, 3))
    done = scene.launch("--config", "run.yaml", timeout_s=180)
    assert done.exit_code == 0, done
    second = {rank: losses(lines) for rank, lines in read_metrics(scene.runs()[-1]).items()}
    first_step = min(second[0])
    assert 20 < first_step <= reached + 1
    assert (first_step - 1) % 10 == 0, "it went on from no checkpoint"
    assert sorted(second) == [0, 1]
    assert all(sorted(steps) == list(range(first_step, 61)) for steps in second.values())

    if not shared:
        return  # that nothing but the steps matches is told by one of the two
    scene.write("whole.yaml", config.replace("/mine", "/whole").replace("dir: mine", "dir: whole"))
    whole = scene.launch("--config", "whole.yaml", timeout_s=180)
    assert whole.exit_code == 0, whole
    unbroken = {rank: losses(lines) for rank, lines in read_metrics(scene.runs()[-1]).items()}
    for rank, steps in second.items():
        assert steps == {step: loss for step, loss in unbroken[rank].items() if step >= first_step}


def test_unequal_nodes_are_refused_before_anything_starts(nodes3: Cluster, tmp_path: Path) -> None:
    scene = build_scene(nodes3, tmp_path)
    nodes3.write_list(scene.nodes, {1: "slots=2", 2: "slots=1"}, python=nodes3.python, nodes=(1, 2))
    done = scene.launch("--config", "config/hybrid_shard.yaml")
    assert done.exit_code == 3, done
    assert f"{nodes3.address(1)} · would start 2, and equal numbers are asked for (config" in done.stderr, done.stderr
    assert not scene.runs() or not list(scene.experiment.glob("logs/*"))
