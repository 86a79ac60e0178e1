"""The training side by itself: real agents of torchrun on this machine, no launcher."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ranks import PROJECT, Ranks, held_out, pick_port, read_losses, read_metrics

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

CONFIG = PROJECT / "config"
TRAIN = PROJECT / "scripts" / "train.py"
TINY = {
    "training": {"batch_size": 2, "eval_samples": 4, "log_interval": 1, "eval_interval": 2, "max_steps": 2},
    "dataset": {"num_samples": 100, "sequence_length": 8},
    "model": {"model_dim": 16, "num_heads": 2, "num_layers": 1},
}


def run_agents(folder: Path, processes: tuple[int, ...], script: str, *args: str) -> tuple[list[int], str]:
    """Run an agent for each node; give the exit codes and what all of them wrote."""
    port = pick_port()
    log = folder / "log"
    agents = []
    with log.open("w") as out:
        for node_rank, count in enumerate(processes):
            words = ["--nnodes", len(processes), "--node-rank", node_rank, "--nproc-per-node", count]
            words += ["--master-addr", "127.0.0.1", "--master-port", port, "--max-restarts", 0]
            words += ["--log-dir", folder / "agents"]  # else it leaves one in the machine's own /tmp
            words += [PROJECT / "scripts" / script, *args]
            env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            env |= {"AORTA_OUTPUT_DIR": str(folder), "AORTA_NODE_RANK": str(node_rank), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "torch.distributed.run", *map(str, words)]
            agents.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env))
        try:
            codes = [agent.wait(110) for agent in agents]
        finally:
            for agent in agents:
                agent.terminate()  # once only: more would leave its ranks alive
    return codes, log.read_text()


def write_config(path: Path, source: str, **changes: dict[str, Any]) -> Path:
    """A copy of a shipped config, with other values for some of its keys."""
    import yaml  # noqa: PLC0415 - the launcher's own

    config = yaml.safe_load((CONFIG / source).read_text()) if source else {}
    for section, keys in changes.items():
        config[section] = {**(config.get(section) or {}), **keys}
    path.write_text(yaml.safe_dump(config))
    return path


def train(folder: Path, nodes: tuple[int, ...] = (1, 1), **changes: dict[str, Any]) -> list[dict[str, Any]]:
    folder.mkdir()
    config = write_config(folder / "config.yaml", "cpu_demo.yaml", **changes)
    codes, log = run_agents(folder, nodes, "train.py", "--config", str(config))
    assert codes == [0] * len(nodes), log
    told = [line for line in log.splitlines() if line.startswith("held-out loss: first ")]
    assert len(told) == 1, log
    assert sum("gloo" in line and line.startswith("rank ") for line in log.splitlines()) == sum(nodes), log
    return read_metrics(folder)


def test_the_demo_learns_what_holds_for_sequences_never_seen(tmp_path: Path) -> None:
    losses = held_out(train(tmp_path / "run"))
    print("held-out loss:", losses)
    assert losses[-1] < losses[0] / 2


@pytest.mark.long
def test_the_control_with_shuffled_targets_learns_nothing(tmp_path: Path) -> None:
    losses = held_out(train(tmp_path / "run", training={"shuffle_targets": True}))
    print("held-out loss of the control:", losses)
    assert losses[-1] > 0.97 * losses[0]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_same_seed_gives_the_same_curve_however_ranks_lie_on_nodes(tmp_path: Path) -> None:
    small = {"max_steps": 20, "log_interval": 2, "eval_interval": 8, "batch_size": 8}
    model = {"model_dim": 16, "dropout": 0.1}
    layouts = {"1x4": (4,), "2x2": (2, 2), "4x1": (1, 1, 1, 1), "again": (1, 3)}
    runs = {name: train(tmp_path / name, nodes, training=small, model=model) for name, nodes in layouts.items()}
    first = runs["1x4"]
    assert [line["step"] for line in first if line.get("held_out_loss") is not None] == [0, 8, 16, 20]
    assert [line["step"] for line in first if line.get("loss") is not None] == list(range(1, 21))
    for name, lines in runs.items():
        assert held_out(lines) == pytest.approx(held_out(first), abs=1e-5)
        for step, losses in read_losses(tmp_path / name, 4).items():
            assert losses == pytest.approx(read_losses(tmp_path / "1x4", 4)[step], abs=1e-5)
    other = read_metrics(tmp_path / "2x2", 3)
    assert {(line["rank"], line["node_rank"]) for line in other} == {(3, 1)}
    assert held_out(other) == held_out(runs["2x2"])
    assert other[1]["loss"] != runs["2x2"][1]["loss"], "two ranks train on the same data"


def test_verify_adds_up_uneven_nodes_and_shows_each_place(tmp_path: Path) -> None:
    codes, log = run_agents(tmp_path, (2, 1), "verify.py")
    assert codes == [0, 0], log
    lines = log.splitlines()
    assert "sum right: 3 of 3 ranks" in lines
    header = next(number for number, line in enumerate(lines) if line.startswith("rank  local rank"))
    host = socket.gethostname()
    places = [line.split() for line in lines[header + 1 : header + 4]]
    assert places == [["0", "0", "0", host, "0"], ["1", "1", "0", host, "0"], ["2", "0", "1", host, "1"]]


@pytest.mark.parametrize(
    ("changes", "words", "env"),
    [
        ({"training": {"max_step": 5}}, ":2: unknown key training.max_step: did you mean training.max_steps?", {}),
        pytest.param({"distributed": {"backend": "mpi"}}, "has no mpi", {}, marks=pytest.mark.long),
        pytest.param({"distributed": {"backend": "nccl"}}, "backend: nccl needs a GPU", {}, marks=pytest.mark.long),
        pytest.param({"training": {"mixed_precision": "fp16"}}, "fp16 needs a GPU", {}, marks=pytest.mark.long),
        pytest.param(
            {"checkpoint": {"dir": str(PROJECT / "kept")}},
            "lies in the pushed project",
            {"AORTA_PUSHED": str(PROJECT)},
            marks=pytest.mark.long,
        ),
        pytest.param({"compile": {"enabled": True, "backend": "no"}}, "backend: no is not", {}, marks=pytest.mark.long),
        pytest.param({}, "crashes DDP over gloo", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, marks=pytest.mark.long),
        pytest.param({}, "MASTER_ADDR is not set", {"MASTER_ADDR": ""}, marks=pytest.mark.long),
    ],
)
def test_a_mistake_is_one_line_and_code_2_on_every_rank_and_in_the_error_file(
    tmp_path: Path, changes: dict[str, Any], words: str, env: dict[str, str]
) -> None:
    config = write_config(tmp_path / "config.yaml", "", **changes)
    ranks = Ranks(tmp_path, (1, 1), TRAIN, "--config", config, AORTA_OUTPUT_DIR=str(tmp_path / "out"), **env)
    assert ranks.wait(60) == [2, 2], ranks.logs
    for rank, log in enumerate(ranks.logs):
        (line,) = log.splitlines()
        assert line.startswith("train.py: ")
        assert words in line
        assert words in ranks.read_error(rank)
    assert not (tmp_path / "out").exists()


def test_a_rank_that_does_not_come_is_waited_for_as_long_as_told(tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.yaml", "", distributed={"timeout_s": 1})
    ranks = Ranks(tmp_path, (1, 1), TRAIN, "--config", config, AORTA_OUTPUT_DIR=str(tmp_path))
    ranks.processes[1].kill()
    started = time.monotonic()
    (code, _) = ranks.wait(90)
    assert code == 1
    assert time.monotonic() - started < 80  # the default alone would be 120
    assert "did not come together" in ranks.read_error(0)


def test_a_signal_to_one_rank_ends_all_at_one_step_with_code_0_and_started_again_they_go_on(tmp_path: Path) -> None:
    keys: dict[str, dict[str, Any]] = {**TINY, "checkpoint": {"interval": 10_000, "dir": "mine"}}
    keys["training"] = {**keys["training"], "max_steps": 1_000_000, "eval_interval": 1_000_000}
    keys["dataloader"] = {"num_workers": 1}
    config = write_config(tmp_path / "config.yaml", "", **keys)
    env = {"HOME": str(tmp_path), "AORTA_OUTPUT_DIR": str(tmp_path / "first")}
    ranks = Ranks(tmp_path / "one", (1, 1), TRAIN, "--config", config, **env)
    deadline = time.monotonic() + 60
    while "step 5 of" not in ranks.logs[0]:
        assert time.monotonic() < deadline, ranks.logs
        time.sleep(0.05)
    os.killpg(ranks.processes[1].pid, signal.SIGTERM)  # as torchrun does: to the rank and its workers
    assert ranks.wait(60) == [0, 0], ranks.logs
    (last,) = {max(line["step"] for line in read_metrics(tmp_path / "first", rank)) for rank in range(2)}
    assert f"stopped after step {last} of 1000000 as asked; saved there" in ranks.logs[0]

    keys["training"] = {**keys["training"], "max_steps": last + 2}
    config = write_config(tmp_path / "config.yaml", "", **keys)
    env["AORTA_OUTPUT_DIR"] = str(tmp_path / "second")
    ranks = Ranks(tmp_path / "two", (1, 1), TRAIN, "--config", config, **env)
    assert ranks.wait(60) == [0, 0], ranks.logs
    assert sorted(read_losses(tmp_path / "second", 2)) == [last + 1, last + 2]


CUT: dict[str, dict[str, dict[str, Any]]] = {
    "two_nodes": {},
    "two_nodes_ddp": {"dataset": {"num_samples": 100, "sequence_length": 8, "vocab_size": 100}},
    "gpt_small": {"dataset": {"sequence_length": 16, "vocab_size": 300, "num_samples": 100}},
    "hybrid_shard": {"dataset": {"sequence_length": 16, "num_samples": 100}},
    "cpu_demo": {},
    "profile": {"training": {"max_steps": 12}},
    "debug": {},
}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CUT))
def test_every_shipped_config_runs_a_few_steps_on_cpus(tmp_path: Path, name: str) -> None:
    small = {"max_steps": 3, "batch_size": 2, "eval_samples": 4, **CUT[name].get("training", {})}
    changes = {**CUT[name], "training": small}
    changes["model"] = {"model_dim": 32, "num_heads": 2, "num_layers": 2}
    config = write_config(tmp_path / f"{name}.yaml", f"{name}.yaml", **changes)
    more = {"AORTA_DISTRIBUTED_DEBUG": "1", "TORCH_DISTRIBUTED_DEBUG": "INFO"} if name == "debug" else {}
    env = {"HOME": str(tmp_path), "AORTA_OUTPUT_DIR": str(tmp_path / "out"), **more}
    ranks = Ranks(tmp_path, (1, 1), TRAIN, "--config", config, **env)
    assert ranks.wait(110) == [0, 0], ranks.logs
    assert "warning" not in ranks.logs[0], ranks.logs
    assert max(read_losses(tmp_path / "out", 2)) == small["max_steps"]
    if name == "profile":
        assert len(list((tmp_path / "out").rglob("rank_*_window_0.json.gz"))) == 2
