"""Ways of spreading one training over ranks: all of them must give the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import held_out, read_losses, read_metrics, run_cases

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard")
SAME = 1e-5
TIMEOUT_S = 110


RANKING: dict[str, Any] = {
    "training": {"max_steps": 200, "batch_size": 64, "eval_interval": 200, "eval_samples": 1000, "log_interval": 200},
    "model": {"name": "ranking", "model_dim": 32, "num_heads": 2, "num_layers": 1, "embedding_dim": 8},
    "dataset": {"name": "ranking", "vocab_size": 10, "sequence_length": 4, "dense_dim": 2, "num_dense_features": 2},
    "optimizer": {"lr": 0.01},
}


def build(**changes: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "training": {"max_steps": 20, "batch_size": 4, "eval_interval": 20, "eval_samples": 30, "log_interval": 20},
        "model": {"model_dim": 16, "num_heads": 2, "num_layers": 1, "dropout": 0.1},
        "dataset": {"vocab_size": 16, "sequence_length": 8, "num_samples": 400},
        "scheduler": {"warmup_steps": 3},
        "optimizer": {"lr": 0.02},
    }
    for section, keys in changes.items():
        config[section] = {**config.get(section, {}), **keys}
    return config


def fsdp(strategy: str, **changes: dict[str, Any]) -> dict[str, Any]:
    config = build(distributed={"mode": "fsdp"}, **changes)
    config["fsdp"] = {"sharding_strategy": strategy, **config.get("fsdp", {})}
    return config


def assert_same(folder: Path, one: str, other: str, ranks: int = 4) -> None:
    """Every rank's loss of each step, the gradients' norm, and what came out."""
    first, second = read_losses(folder / one, ranks), read_losses(folder / other, ranks)
    assert sorted(first) == sorted(second)
    assert len(first) >= 8
    for step, losses in first.items():
        assert losses == pytest.approx(second[step], abs=SAME), (one, other, step)
    norms = [
        [line["grad_norm"] for line in read_metrics(folder / name) if line.get("grad_norm") is not None]
        for name in (one, other)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert held_out(read_metrics(folder / one)) == pytest.approx(held_out(read_metrics(folder / other)), abs=SAME)


def build_pairs(**more: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Cases that must give the same numbers, by the name of the one that they are compared with."""
    small = {"batch_size": 1, "gradient_accumulation": 4}
    cases = {"ddp": build(**more), **{strategy: fsdp(strategy, **more) for strategy in STRATEGIES}}
    precise = {**more, "model": {**more.get("model", {}), "dropout": 0.0}}
    cases["large"] = build(**precise)
    for name, make in (("accumulated", build), ("accumulated_hybrid", lambda **words: fsdp("hybrid_shard", **words))):
        cases[name] = make(**{**precise, "training": {**more.get("training", {}), **small}})
    wanted = dict.fromkeys(STRATEGIES, "ddp")
    return cases, {**wanted, "accumulated": "large", "accumulated_hybrid": "large"}


def test_all_ways_to_shard_give_the_curve_of_ddp(tmp_path: Path) -> None:
    cases, wanted = build_pairs(training={"max_steps": 8})
    (tmp_path / "meshes_wanted").touch()
    run_cases(tmp_path, (2, 2), cases, TIMEOUT_S)
    losses = read_losses(tmp_path / "ddp", 4)
    assert len({round(loss, 6) for loss in losses[1]}) == 4, "ranks train on the same data"
    # Ranks 0 and 1 stand on the first node: they hold different shards, 0 and 2 the same.
    assert json.loads((tmp_path / "meshes_0.json").read_text()) == {
        "full_shard": [["shard"], [0, 1, 2, 3]],
        "no_shard": [["replicate", "shard"], [[0], [1], [2], [3]]],
        "hybrid_shard": [["replicate", "shard"], [[0, 1], [2, 3]]],
    }
    for name, other in wanted.items():
        assert_same(tmp_path, other, name)
    with pytest.raises(AssertionError):
        assert_same(tmp_path, "large", "ddp")  # dropout alone makes a difference that this sees


@pytest.mark.long
@pytest.mark.timeout(400)
def test_all_ways_to_shard_over_more_steps_and_with_all_else(tmp_path: Path) -> None:
    cases, wanted = build_pairs(model={"num_layers": 2})
    two = {"model": {"num_layers": 2}}
    cases["whole_model"] = fsdp("full_shard", fsdp={"wrap": "model"}, **two)
    cases["again"] = build(training={"activation_checkpointing": True}, **two)
    cases["sharded_again"] = fsdp("full_shard", training={"activation_checkpointing": True}, **two)
    cases["workers"] = build(dataloader={"num_workers": 1}, **two)
    wanted |= dict.fromkeys(("whole_model", "again", "sharded_again", "workers"), "ddp")
    run_cases(tmp_path, (2, 2), cases, 380)
    for name, other in wanted.items():
        assert_same(tmp_path, other, name)


def test_one_rank_alone_accumulates_and_learns_to_rank(tmp_path: Path) -> None:
    small = {"batch_size": 2, "gradient_accumulation": 4}
    cases = {
        "large": build(training={"batch_size": 8}, model={"dropout": 0.0}),
        "accumulated": build(training=small, model={"dropout": 0.0}),
        "mistaken": build(training={"batch_size": 2}, model={"dropout": 0.0}),
        "learns": RANKING,
        "control": {**RANKING, "training": {**RANKING["training"], "shuffle_targets": True}},
    }
    (log,) = run_cases(tmp_path, (1,), cases, TIMEOUT_S)
    print(log)
    assert_same(tmp_path, "large", "accumulated", ranks=1)
    with pytest.raises(AssertionError):
        assert_same(tmp_path, "large", "mistaken", ranks=1)
    first, last = held_out(read_metrics(tmp_path / "learns"))
    assert last < 0.85 * first
    first, last = held_out(read_metrics(tmp_path / "control"))
    assert last > 0.97 * first


def test_resumed_is_unbroken_in_every_number(tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {}
    for name, make in (("ddp", build), ("full_shard", lambda **words: fsdp("full_shard", **words))):
        kept = {"interval": 10, "dir": name}
        cases[f"{name}_unbroken"] = make(scheduler={"total_steps": 20})
        cases[f"{name}_begun"] = make(training={"max_steps": 10}, scheduler={"total_steps": 20}, checkpoint=kept)
        cases[f"{name}_resumed"] = make(scheduler={"total_steps": 20}, checkpoint=kept)
        cases[f"{name}_anew"] = make(scheduler={"total_steps": 20}, checkpoint={**kept, "dir": name, "resume": False})
    logs = run_cases(tmp_path, (1, 1), cases, TIMEOUT_S)
    assert "goes on from the checkpoint of step 10" in logs[0]
    for name in ("ddp", "full_shard"):
        unbroken = read_losses(tmp_path / f"{name}_unbroken", 2)
        begun, resumed = (read_losses(tmp_path / f"{name}_{part}", 2) for part in ("begun", "resumed"))
        assert sorted(resumed) == list(range(11, 21))
        assert {**begun, **resumed} == unbroken
        assert (
            held_out(read_metrics(tmp_path / f"{name}_resumed"))[-1]
            == held_out(read_metrics(tmp_path / f"{name}_unbroken"))[-1]
        )
        assert read_losses(tmp_path / f"{name}_anew", 2) == unbroken


@pytest.mark.long
def test_unequal_nodes_are_refused_alike_before_any_work(tmp_path: Path) -> None:
    two = {"max_steps": 2}
    cases = {"hybrid": fsdp("hybrid_shard", training=two), "full": fsdp("full_shard", training=two)}
    run_cases(tmp_path, (2, 1), cases, TIMEOUT_S)
    told = [(tmp_path / "hybrid" / f"refused_{rank}").read_text() for rank in range(3)]
    assert len(set(told)) == 1
    assert "hybrid_shard needs as many ranks on each node" in told[0]
    assert " 2, " in told[0]
    assert not list((tmp_path / "hybrid").glob("*.jsonl"))
    assert len(read_losses(tmp_path / "full", 3)) == 2
