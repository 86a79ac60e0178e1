"""The training side by itself: two real agents of torchrun on this machine, no launcher."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

PROJECT = Path(__file__).resolve().parents[2]
DEMO = PROJECT / "config" / "cpu_demo.yaml"


def pick_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


def run_agents(folder: Path, processes: tuple[int, ...], script: str, *args: str) -> tuple[list[int], str]:
    """Run an agent for each node; give the exit codes and what all of them wrote."""
    port = pick_port()
    log = folder / "log"
    agents = []
    with log.open("w") as out:
        for node_rank, count in enumerate(processes):
            words = ["--nnodes", len(processes), "--node-rank", node_rank, "--nproc-per-node", count]
            words += ["--master-addr", "127.0.0.1", "--master-port", port, "--max-restarts", 0]
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


def read_metrics(folder: Path, rank: int) -> list[dict[str, Any]]:
    text = (folder / f"rank_{rank:02d}_metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def train(folder: Path, **changes: object) -> list[dict[str, Any]]:
    folder.mkdir()
    lines = DEMO.read_text().splitlines()
    for name, value in changes.items():
        (place,) = (number for number, line in enumerate(lines) if line.strip().startswith(f"{name}:"))
        lines[place] = f"  {name}: {value}"
    config = folder / "config.yaml"
    config.write_text("\n".join(lines))
    codes, log = run_agents(folder, (1, 1), "train.py", "--config", str(config))
    assert codes == [0, 0], log
    told = [line for line in log.splitlines() if line.startswith("held-out loss: first ")]
    assert len(told) == 1, log
    assert sum("gloo" in line and line.startswith("rank ") for line in log.splitlines()) == 2, log
    return read_metrics(folder, 0)


def held_out(metrics: list[dict[str, Any]]) -> list[float]:
    return [line["held_out_loss"] for line in metrics if "held_out_loss" in line]


def test_the_demo_learns_what_holds_for_sequences_never_seen(tmp_path: Path) -> None:
    losses = held_out(train(tmp_path / "run"))
    print("held-out loss:", losses)
    assert losses[-1] < losses[0] / 2


@pytest.mark.long
def test_the_control_with_shuffled_targets_learns_nothing(tmp_path: Path) -> None:
    losses = held_out(train(tmp_path / "run", shuffle_targets="true"))
    print("held-out loss of the control:", losses)
    assert losses[-1] > 0.97 * losses[0]


@pytest.mark.long
def test_each_rank_writes_its_metrics_and_a_second_run_is_the_same(tmp_path: Path) -> None:
    small = {"max_steps": 5, "log_every": 2, "eval_every": 4, "d_model": 16}
    first, second = train(tmp_path / "a", **small), train(tmp_path / "b", **small)
    assert [line["step"] for line in first] == [0, 2, 4, 5]
    assert [line["step"] for line in first if "held_out_loss" in line] == [0, 4, 5]
    wanted = {"time", "host", "node_rank", "rank", "step", "loss", "lr", "grad_norm", "step_ms"}
    assert wanted | {"samples_per_s", "tokens_per_s"} == set(first[1])
    for name in ("loss", "held_out_loss", "grad_norm"):
        assert [line.get(name) for line in first] == [line.get(name) for line in second]
    other = read_metrics(tmp_path / "a", 1)
    assert {(line["rank"], line["node_rank"]) for line in other} == {(1, 1)}
    assert held_out(other) == held_out(first)
    assert other[1]["loss"] != first[1]["loss"], "both ranks train on the same data"


def test_verify_adds_up_uneven_nodes_and_shows_each_place(tmp_path: Path) -> None:
    codes, log = run_agents(tmp_path, (2, 1), "verify.py")
    assert codes == [0, 0], log
    lines = log.splitlines()
    assert "sum right: 3 of 3 ranks" in lines
    header = next(number for number, line in enumerate(lines) if line.startswith("rank  local rank"))
    host = socket.gethostname()
    places = [line.split() for line in lines[header + 1 : header + 4]]
    assert places == [["0", "0", "0", host, "0"], ["1", "1", "0", host, "0"], ["2", "0", "1", host, "1"]]
