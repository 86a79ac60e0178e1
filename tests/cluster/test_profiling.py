"""Traces, what they say of the communication, and trackers: real ranks on this machine, without the launcher."""

from __future__ import annotations

import importlib
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ranks import PROJECT, build_environments

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

RANKS = 2
DEADLINE_S = 100


def run_ranks(folder: Path, *words: object, **more: str) -> list[tuple[int, str]]:
    """Run a program as two ranks on two nodes; give each one's exit code and what it wrote."""
    folder.mkdir(exist_ok=True)
    more = {"AORTA_OUTPUT_DIR": str(folder / "outputs"), "AORTA_RUN_ID": "run-k3f9", **more}
    logs = [folder / f"log_{rank}" for rank in range(RANKS)]
    ranks = []
    for log, place in zip(logs, build_environments((1,) * RANKS, **more), strict=True):
        env = {name: value for name, value in place.items() if not name.startswith(("WANDB_", "TORCHELASTIC_"))}
        env |= {name: value for name, value in more.items() if name.startswith("WANDB_")}
        with log.open("w") as out:
            command = [sys.executable, *map(str, words)]
            ranks.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env))
    try:
        codes = [rank.wait(DEADLINE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(code, log.read_text()) for code, log in zip(codes, logs, strict=True)]


def write_config(folder: Path, **sections: dict[str, object]) -> Path:
    """Write config/profile.yaml with fewer and smaller steps."""
    config = yaml.safe_load((PROJECT / "config" / "profile.yaml").read_text())
    small: dict[str, dict[str, object]] = {
        "training": {"max_steps": 6, "batch_size": 4, "log_interval": 2, "eval_interval": 3, "eval_samples": 16},
        "dataset": {"sequence_length": 32},
        "profiling": {"wait": 1, "warmup": 1, "active": 2},
    }
    for changes in (small, sections):
        for section, values in changes.items():
            config.setdefault(section, {}).update(values)
    folder.mkdir(exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def read_metrics(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"rank_{rank:02d}_metrics.jsonl").read_text().splitlines()]


def measure(folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(PROJECT / "scripts" / "overlap"), "--json", str(folder)]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def test_gradients_reduced_during_the_backward_pass_are_hidden_and_those_after_it_are_not(tmp_path: Path) -> None:
    ended = run_ranks(tmp_path, PROJECT / "tests" / "cluster" / "overlap_ranks.py", tmp_path)
    for code, log in ended:
        # A profiler that was left running would crash the interpreter, and hide why it ends.
        assert (code, "RuntimeError: planted" in log) == (1, True), log
    bucketed, after = measure(tmp_path / "bucketed"), measure(tmp_path / "after")
    print("bucketed:", bucketed["total"], "after:", after["total"])
    for found in (bucketed, after):
        assert [(rank["rank"], rank["steps"], rank["device"]) for rank in found["ranks"]] == [
            (0, 2, "cpu"),
            (1, 2, "cpu"),
        ]
        for rank in found["ranks"]:
            assert rank["communication_ms"] > 1
            assert rank["communication_ms"] <= rank["step_ms"]
    assert all(rank["overlap_percent"] < 2 for rank in after["ranks"])
    assert all(rank["overlap_percent"] > 10 for rank in bucketed["ranks"])
    for name, found in (("bucketed", bucketed), ("after", after)):
        for rank in range(RANKS):
            lines = read_metrics(tmp_path / name, rank)
            assert [line["step"] for line in lines] == list(range(11, 17))
            assert [line["step"] for line in lines if "comm_ms" in line] == [13, 14]
            told = sum(line.get("comm_ms", 0) for line in lines)
            assert told == pytest.approx(found["ranks"][rank]["communication_ms"], abs=1e-3)
            assert all(line.get("comm_ms", 0) < line["step_ms"] + 1 for line in lines)
    failed = read_metrics(tmp_path / "failed")
    assert [(line["step"], "comm_ms" in line) for line in failed] == [(11, False), (12, False), (13, True)]
    assert [rank["steps"] for rank in measure(tmp_path / "failed")["ranks"]] == [2, 2]


def test_the_training_script_leaves_traces_and_tells_comm_ms_of_the_ranks_that_are_asked_for(tmp_path: Path) -> None:
    config = write_config(tmp_path, profiling={"ranks": [1], "active": 1, "repeat": 2})
    for code, log in run_ranks(tmp_path, PROJECT / "scripts" / "train.py", "--config", config):
        assert code == 0, log
    outputs = tmp_path / "outputs"
    names = ["rank_01_window_0.json.gz", "rank_01_window_1.json.gz"]
    assert sorted(path.name for path in (outputs / "traces").iterdir()) == names
    lines = read_metrics(outputs, 1)
    assert [line["step"] for line in lines] == list(range(7))
    assert [line["step"] for line in lines if "comm_ms" in line] == [3, 6]
    assert [line["step"] for line in lines if "held_out_loss" in line] == [0, 3, 6]
    assert not any("comm_ms" in line for line in read_metrics(outputs, 0))
    found = measure(tmp_path)
    assert [(rank["rank"], rank["steps"]) for rank in found["ranks"]] == [(1, 2)]
    assert found["total"]["communication_ms"] == pytest.approx(sum(line.get("comm_ms", 0) for line in lines), abs=1e-3)
    assert found["total"]["overlap_percent"] > 0
    page = (PROJECT / "docs" / "metrics.md").read_text()
    assert all(f"| `{name}` |" in page for line in lines for name in line)


@pytest.mark.long
def test_a_tensorboard_that_is_missing_ends_every_rank_at_the_start(tmp_path: Path) -> None:
    broken = tmp_path / "site" / "tensorboard"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not here')\n")
    config = write_config(tmp_path, logging={"tensorboard": True}, profiling={"enabled": False})
    ended = run_ranks(tmp_path, PROJECT / "scripts" / "train.py", "--config", config, PYTHONPATH=str(broken.parent))
    for code, log in ended:
        assert code == 2, log
        assert "logging.tensorboard is on, but tensorboard cannot be used on" in log
        assert "pip install tensorboard" in log
        assert "Traceback" not in log
        assert "step 1" not in log


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulators: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check_scalars(folder: Path, lines: list[dict[str, Any]]) -> None:
    scalars = read_scalars(folder)
    assert {"loss", "lr", "step_ms", "samples_per_s", "held_out_loss", "comm_ms", "memory_mib"} <= set(scalars)
    for name, values in scalars.items():
        wanted = {line["step"]: line[name] for line in lines if name in line}
        assert dict(values) == pytest.approx(wanted, rel=1e-5), name
        assert len(values) == len(wanted)


def read_records(data: bytes) -> Iterator[bytes]:
    """Read the records of a .wandb file: blocks of 32 KiB in which a record may come in pieces."""
    place, held = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if left < 7 or not kind:
            place += left
            continue
        held += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # whole, or the last piece
            yield held
            held = b""


def read_wandb(file: Path) -> tuple[str, str, list[float]]:
    """Read the name, the group and the losses of an offline run."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    name = group = ""
    losses = []
    for data in read_records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            name, group = record.run.display_name, record.run.run_group
        items = record.history.item
        losses += [json.loads(item.value_json) for item in items if "loss" in (item.key, *item.nested_key)]
    return name, group, losses


@pytest.mark.long
@pytest.mark.parametrize("per_rank", [False, True])
def test_trackers_get_the_lines_of_the_metrics(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, *, per_rank: bool
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("wandb", reason="wandb is not installed")
    logging: dict[str, object] = {"tensorboard": True, "wandb": True, "per_rank": per_rank}
    config = write_config(tmp_path, logging=logging)
    # Whatever would go over a network would fail, and be told.
    nowhere = {"WANDB_BASE_URL": "http://127.0.0.1:9", "HOME": str(tmp_path_factory.mktemp("home"))}
    for code, log in run_ranks(tmp_path, PROJECT / "scripts" / "train.py", "--config", config, **nowhere):
        assert code == 0, log
        assert "warning" not in log.lower().replace("userwarning", ""), log
    outputs = tmp_path / "outputs"
    writers = range(RANKS) if per_rank else range(1)
    for rank in writers:
        check_scalars(outputs / "tensorboard" / (f"rank_{rank:02d}" if per_rank else ""), read_metrics(outputs, rank))
    files = sorted(outputs.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == len(writers)
    runs = {name: (group, losses) for name, group, losses in map(read_wandb, files)}
    names = [f"run-k3f9-rank_{rank:02d}" if per_rank else "run-k3f9" for rank in writers]
    assert sorted(runs) == names
    for rank, name in zip(writers, names, strict=True):
        wanted = [line["loss"] for line in read_metrics(outputs, rank) if "loss" in line]
        group, losses = runs[name]
        assert group == ("run-k3f9" if per_rank else "")
        assert losses == pytest.approx(wanted, rel=1e-6)
