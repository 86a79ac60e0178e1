"""docs/gpu-results.md says what the figures beside it say, and names what was not measured; scripts/gpu_proof --page writes it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from gpuproof import training  # noqa: E402 - found by the line above
from gpuproof.page import PAGE, PARTS, build_page, list_missing, read_all  # noqa: E402
from gpuproof.results import Results, read_results, write_results  # noqa: E402

FOUND = read_all()
CARD = "NVIDIA H100 80GB HBM3"
ROW = {"case": "ddp", "tokens_per_s": 1, "loss": [2.0, 1.0], "seconds": 1.0, "sequences": 16, "steps": [1.0]}


def test_the_page_is_made_from_the_figures() -> None:
    assert PAGE.read_text() == build_page(FOUND), "scripts/gpu_proof --page"
    assert set(FOUND) == set(PARTS)


def test_what_was_not_measured_is_told() -> None:
    assert list_missing({})[:3] == [f"{part}: nothing." for part in PARTS]
    two = {
        part: [replace(one, machine={**one.machine, "gpus": [CARD] * 4, "nodes": ["0,1", "2,3"]}) for one in measured]
        for part, measured in FOUND.items()
    }
    told = "\n".join(list_missing(two))
    assert "node's own" not in told
    assert "two GPUs on each node" not in told
    assert "H100" not in told
    rows = tuple({**ROW, "pair": pair, "tool": training.BY_HAND, "step_ms": 100.0 + pair} for pair in (1, 2))
    apart = replace(FOUND["training"][0], rows=rows, machine={**FOUND["training"][0].machine, "nodes": ["0", "1"]})
    shared = replace(apart, machine={**apart.machine, "nodes": ["0", "0"]})
    others = ", ".join(case.label for case in training.list_cases()[1:])
    assert list_missing({"training": [apart]})[2] == f"training, not at all: {others}."
    assert "training: every node with a GPU of its own. 2 nodes shared one NVIDIA H200." in list_missing(
        {"training": [shared]}
    )
    renamed = replace(shared, rows=tuple({**row, "case": "full_shard"} for row in rows))
    assert "training, on a GPU of each node's own: full_shard." in list_missing({"training": [apart, renamed]})
    rough = replace(apart, rows=(rows[0], {**rows[1], "step_ms": 104.0}))
    told = "\n".join(list_missing({"training": [rough]}))
    assert "training, to a hundredth (one run by hand, or runs that lie further apart): ddp." in told
    assert "to a hundredth" not in "\n".join(list_missing({"training": [rough, shared]}))


def test_shards_inside_of_a_node_need_two_gpus_that_no_other_node_has() -> None:
    def told(*owners: list[str]) -> str:
        one = FOUND["training"][0]
        return "\n".join(
            list_missing({"training": [replace(one, machine={**one.machine, "nodes": own}) for own in owners]})
        )

    assert "training: two GPUs on each node" in told(["0", "1"])
    assert "training: two GPUs on each node" in told(["0,1", "2"])
    assert "training: two GPUs of each node's own" in told(["0", "1"], ["0,1", "0,1"])
    assert "two GPUs" not in told(["0,1", "0,1"], ["0,1", "2,3"])


def test_a_ratio_that_is_not_what_it_must_be_is_told() -> None:
    def page(ours: float) -> str:
        pair = [{"tool": training.OURS, "step_ms": ours}, {"tool": training.BY_HAND, "step_ms": 100.0}]
        rows = tuple({**ROW, "pair": 1, **one} for one in pair)
        return build_page({"training": [replace(FOUND["training"][0], rows=rows)]})

    assert "| 1.005 (1.005 to 1.005) | yes " in page(100.5)
    assert "| 1.020 (1.020 to 1.020) | **no** " in page(102.0)


def test_figures_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    for results in (one for measured in FOUND.values() for one in measured):
        assert read_results(write_results(results, tmp_path)) == results


def test_steps_to_warm_up_do_not_count() -> None:
    lines = [
        {"step": n, "step_ms": ms, "tokens_per_s": 1000 / ms, "loss": 9.0 - n}
        for n, ms in enumerate([900.0, 10, 30, 20])
    ]
    row = training.build_row(
        training.list_cases()[0], training.OURS, 1, 5.0, [*lines, {"step": 4, "held_out_loss": 3.5}], 1
    )
    assert (row["step_ms"], row["loss"], row["steps"]) == (20, [9.0, 6.0], [10, 30, 20])
    with pytest.raises(RuntimeError, match="warm up"):
        training.build_row(training.list_cases()[0], training.OURS, 1, 5.0, lines, 4)


def test_a_call_goes_on_after_the_whole_pairs_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"case": "ddp", "tool": tool, "pair": 1} for tool in (training.OURS, training.BY_HAND)]
    kept = training.keep_pairs([*rows, {"case": "ddp", "tool": training.BY_HAND, "pair": 2}])
    assert kept == rows
    for name in ("launch_once", "start_by_hand"):
        monkeypatch.setattr(training, name, lambda *_: ([], 1.0))
    monkeypatch.setattr(training, "read_sequences", lambda *_: 16)
    monkeypatch.setattr(training, "build_row", lambda _, tool, pair, *__: {"tool": tool, "pair": pair})

    class Pushed:
        def push(self) -> None:
            pass

    made = list(training.measure_training(Pushed(), ["ddp"], kept, pairs=2, warm_up=1))  # type: ignore[arg-type]
    assert [(row["pair"], row["tool"] == training.OURS) for row in made] == [
        (2, False),
        (2, True),
        (3, True),
        (3, False),
    ]


def test_every_case_is_a_config_that_the_training_script_takes(tmp_path: Path) -> None:

    from workload.config import read_config  # noqa: PLC0415 - found by the path above

    for case in training.list_cases():
        path = tmp_path / f"{case.label}.yaml"
        path.write_text(yaml.safe_dump(training.build_config(case, 40, 16, small=False), sort_keys=False))
        config = read_config(path)
        assert config.compile.enabled == case.compiled
        assert config.training.mixed_precision == "bf16"
        assert config.distributed.mode == ("ddp" if case.name == "ddp" else "fsdp")


def test_whatever_was_kept_has_both_tools_in_pairs() -> None:
    measured: Sequence[Results] = FOUND["training"]
    for results in measured:
        for case in {row["case"] for row in results.rows}:
            ours, by_hand = (
                {row["pair"] for row in results.rows if (row["case"], row["tool"]) == (case, tool)}
                for tool in (training.OURS, training.BY_HAND)
            )
            assert ours == by_hand
            assert ours
