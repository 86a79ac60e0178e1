"""Every script of examples/ through the launcher, on two real nodes; and what comes with the libraries themselves."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from cluster import Cluster, Completed
from conftest import FreshCluster
from scenes import Scene

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.namespaces, pytest.mark.torch]

PROJECT = Path(__file__).resolve().parents[2]
END = re.compile(r"(loss|right) ([\d.]+) -> ([\d.]+).*, the same on all (\d+) ranks$", re.MULTILINE)


def need(module: str) -> None:
    """Skip where a library is missing; asked without importing it, which takes seconds."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: scripts/test --all installs it")


def build_scene(cluster: Cluster, tmp_path: Path, slots: Mapping[int, int] | None = None) -> Scene:
    """A project that holds examples/ alone, and nodes with so many processes each."""
    slots = slots or {1: 1, 2: 1}
    words = {node: f"slots={count}" for node, count in slots.items()}
    scene = Scene(cluster, tmp_path, python=cluster.python, nodes=tuple(slots), extra=words)
    shutil.copytree(PROJECT / "examples", scene.project / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return scene


def folder_of(tmp_path: Path) -> str:
    """A folder for checkpoints on every node that no other test uses."""
    return f"~/.aorta/checkpoints/{tmp_path.parent.name}_{tmp_path.name}"


def read_out(scene: Scene, rank: int) -> str:
    """What a rank of the last run wrote."""
    return (scene.runs()[-1] / f"logs/rank_{rank:04d}.out").read_text()


def check_end(done: Completed, ranks: int) -> tuple[float, float]:
    """Check that a run ended well with the same weights everywhere; give its figure before and after."""
    assert done.exit_code == 0, done
    ends = END.findall(done.stdout)
    assert len(ends) == 1, done
    name, first, last, told = ends[0]
    assert int(told) == ranks
    print(f"{name} {first} -> {last} on {ranks} ranks, {done.seconds:.1f} s")
    if name == "loss":
        assert float(last) < float(first) / 2
    else:
        assert float(last) > 0.85 > float(first) + 0.15
    return float(first), float(last)


def go_on(scene: Scene, words: list[str], first: str, last: str, ranks: int) -> list[str]:
    """Run an example in two parts; give where each part started."""
    starts = []
    for part in (first, last):
        check_end(scene.launch(*words, part, timeout_s=180), ranks)
        starts += [line for line in read_out(scene, 0).splitlines() if line.startswith("starts ")]
    return starts


def find_rank(cluster: Cluster, k: int, script: str) -> int:
    """Find a rank on a node; the agent's words hold the script's name too."""
    return next(
        process.pid
        for process in cluster.process_table(k)
        if script in process.command and "torch.distributed.run" not in process.command
    )


@pytest.mark.long
def test_a_killed_run_goes_on_from_its_snapshot_with_a_node_that_never_saw_it(nodes3: Cluster, tmp_path: Path) -> None:
    scene = build_scene(nodes3, tmp_path)
    words = ("examples/torchrun_snapshot.py", "--snapshot", f"{folder_of(tmp_path)}.pt", "--epochs")
    launcher = scene.start(*words, "100000")
    launcher.wait_for_text("epoch 3 of", 90)
    nodes3.kill_process(2, find_rank(nodes3, 2, "torchrun_snapshot"), signal.SIGKILL)
    broken = launcher.wait(60)
    assert broken.exit_code == 1, broken
    reached = read_out(scene, 0).count(" of 100000\n")

    # A machine that never saw the run is the head now.
    nodes3.write_list(scene.nodes, {3: "slots=1", 1: "slots=1"}, python=nodes3.python, nodes=(3, 1))
    done = scene.launch(*words, str(reached + 10))
    check_end(done, 2)
    (epoch,) = {int(word) for rank in (0, 1) for word in re.findall(r"starts at epoch (\d+)", read_out(scene, rank))}
    assert reached <= epoch <= reached + 1


def test_a_script_with_a_tcp_address_runs_without_torchrun(nodes3: Cluster, tmp_path: Path) -> None:
    scene = build_scene(nodes3, tmp_path)
    check_end(scene.launch("--config", "examples/tcp_train.yaml"), 2)


@pytest.mark.long
def test_the_helper_library_stops_at_one_step_and_goes_on_there(nodes3: Cluster, tmp_path: Path) -> None:
    scene = build_scene(nodes3, tmp_path, {1: 1, 2: 2})
    words = ["examples/distributed_train.py", "--checkpoints", folder_of(tmp_path), "--epochs"]
    launcher = scene.start(*words, "100000")
    launcher.wait_for_text("step 12, epoch", 90)
    launcher.send_signal(signal.SIGTERM)
    stopped = launcher.wait(60)
    assert stopped.exit_code == 143, stopped
    exits = [event for event in scene.events() if event["kind"] == "rank_exit"]
    assert {event["rank"]: event["code"] for event in exits} == {0: 0, 1: 0, 2: 0}, exits
    (step,) = re.findall(r"steps 0 to (\d+): loss", read_out(scene, 0))
    done = scene.launch(*words, str(int(step) // 6 + 5))
    check_end(done, 3)
    assert f"steps {step} to " in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("agent", ["torchrun", "accelerate"])
def test_accelerate_on_uneven_nodes(nodes3: Cluster, tmp_path: Path, agent: str) -> None:
    need("accelerate")
    scene = build_scene(nodes3, tmp_path, {1: 1, 2: 2} if agent == "torchrun" else None)
    config = ["--config", "examples/accelerate_train.yaml", "--set", f"launch.agent={agent}"]
    words = [*config, "examples/accelerate_train.py", "--output-dir", folder_of(tmp_path), "--epochs"]
    ranks = 3 if agent == "torchrun" else 2
    starts = [f"starts at epoch {epoch} on {ranks} processes" for epoch in (0, 6)]
    assert go_on(scene, words, "6", "8", ranks) == starts


@pytest.mark.long
def test_trainer_of_transformers_on_uneven_nodes(nodes3: Cluster, tmp_path: Path) -> None:
    need("transformers")
    scene = build_scene(nodes3, tmp_path, {1: 2, 2: 1})
    words = ["examples/trainer_train.py", "--output-dir", folder_of(tmp_path), "--max-steps"]
    assert go_on(scene, words, "60", "80", 3) == ["starts from the beginning", "starts from checkpoint-60"]


@pytest.mark.long
def test_lightning_takes_nodes_and_devices_from_torchrun(nodes3: Cluster, tmp_path: Path) -> None:
    need("lightning")
    scene = build_scene(nodes3, tmp_path)
    config = ["--config", "examples/lightning_train.yaml"]
    words = [*config, "examples/lightning_train.py", "--output-dir", folder_of(tmp_path), "--epochs"]
    assert go_on(scene, words, "3", "5", 2) == ["starts from the beginning", "starts from step=96.ckpt"]
    nodes3.write_list(scene.nodes, {1: "slots=2", 2: "slots=1"}, python=nodes3.python, nodes=(1, 2))
    uneven = scene.launch(*config)
    assert uneven.exit_code == 3, uneven
    nodes3.write_list(scene.nodes, {1: "slots=2", 2: "slots=1"}, python=nodes3.python, nodes=(1, 2))
    refused = scene.launch("examples/lightning_train.py")
    assert refused.exit_code == 1, refused
    assert "Lightning needs the same number of processes on every node" in refused.stdout + refused.stderr


@pytest.mark.long
def test_what_accelerate_tests_the_sync_of_gradients_with(nodes3: Cluster, tmp_path: Path) -> None:
    need("accelerate")
    scene = build_scene(nodes3, tmp_path)
    done = scene.launch("-m", "accelerate.test_utils.scripts.test_sync", timeout_s=180)
    assert done.exit_code == 0, done
    # Said where there are several processes only.
    assert "**Test Distributed `no_sync` context manager**" in read_out(scene, 0)


@pytest.mark.long
def test_what_accelerate_tests_itself_with_on_a_shared_folder(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    need("accelerate")
    # A file that one process writes is looked at by all: without GPUs that test takes the nodes for one machine.
    cluster = fresh_cluster(2, shared={"/mnt/work": (1, 2)})
    scene = build_scene(cluster, tmp_path)
    words = ["--workdir", "/mnt/work", "-m", "accelerate.test_utils.scripts.test_script"]
    done = scene.launch(*words, timeout_s=280)
    assert done.exit_code == 0, done
    assert "Num processes: 2" in read_out(scene, 0)


BORING = """
import os
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
trainer = lightning.Trainer(num_nodes=2, devices=1, accelerator="cpu", strategy="ddp", max_epochs=1, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(BoringModel())
print("world", trainer.world_size, "rank", trainer.global_rank, "by", type(trainer.strategy.cluster_environment).__name__)
"""


@pytest.mark.long
def test_the_demo_of_lightning_finds_torchruns_environment(nodes3: Cluster, tmp_path: Path) -> None:
    need("lightning")
    scene = build_scene(nodes3, tmp_path)
    done = scene.launch(scene.write("boring.py", BORING))
    assert done.exit_code == 0, done
    for rank in (0, 1):
        assert f"world 2 rank {rank} by TorchElasticEnvironment\n" in read_out(scene, rank)
