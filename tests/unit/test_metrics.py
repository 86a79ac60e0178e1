"""A rank's metrics file: what is in a line, when it is there, and that no run spoils another's."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from workload import metrics as module  # noqa: E402 - found by the line above
from workload.metrics import Metrics  # noqa: E402
from workload.profiling import profile_steps  # noqa: E402
from workload.schema import ConfigError, Logging, Profiling  # noqa: E402
from workload.trackers import Trackers, open_trackers  # noqa: E402


@dataclass(frozen=True)
class Info:
    rank: int = 0
    node_rank: int = 2
    world_size: int = 1
    host: str = "lab7"
    device: Any = field(default_factory=lambda: torch.device("cpu"))


def take(metrics: Metrics, step: int, loss: float = 1.5, **changes: Any) -> None:
    metrics.start_step(step)
    with metrics.waiting_for_data():
        pass
    values = {"lr": 0.1, "grad_norm": torch.tensor(2.0), "samples": 8, "tokens": 64} | changes
    metrics.end_step(loss=torch.tensor(loss, requires_grad=True), **values)


def read(folder: Path, name: str = "rank_00_metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_line_says_where_when_and_how_fast(tmp_path: Path) -> None:
    with Metrics(tmp_path, Info(rank=3)) as metrics:
        metrics.evaluated(0, 3.4)
        take(metrics, 1)
        assert not (tmp_path / "rank_03_metrics.jsonl").read_text(), "written before it was asked for"
        metrics.evaluated(1, 2.25)
        lines = metrics.flush()
        zero, one = read(tmp_path, "rank_03_metrics.jsonl")
        assert metrics.flush() == []
        take(metrics, 2, grad_norm=None, tokens=None)
    assert {name: zero[name] for name in ("host", "node_rank", "rank", "step", "held_out_loss")} == {
        "host": "lab7",
        "node_rank": 2,
        "rank": 3,
        "step": 0,
        "held_out_loss": 3.4,
    }
    assert datetime.fromisoformat(zero["time"]).utcoffset() == timedelta(0)
    assert [line["step"] for line in lines] == [1]
    assert (one["loss"], one["lr"], one["grad_norm"], one["held_out_loss"]) == (1.5, 0.1, 2.0, 2.25)
    assert 0 <= one["data_ms"] <= one["step_ms"]
    assert one["samples_per_s"] * one["step_ms"] == pytest.approx(8000)
    assert one["tokens_per_s"] * one["step_ms"] == pytest.approx(64000)
    assert 50 < one["memory_mib"] <= one["peak_memory_mib"]
    two = read(tmp_path, "rank_03_metrics.jsonl")[-1]
    assert two["step"] == 2, "the end writes what is left"
    assert not {"grad_norm", "tokens_per_s", "not_finite"} & set(two)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_say_is_null_and_said_beside(tmp_path: Path, value: float) -> None:
    with Metrics(tmp_path, Info()) as metrics:
        take(metrics, 1, loss=value)
        (line,) = metrics.flush()
        assert (line["loss"], line["not_finite"]) == (None, {"loss": str(value)})
        take(metrics, 2)
        metrics.evaluated(2, value)
    one, two = read(tmp_path)
    assert (one["loss"], one["not_finite"]) == (None, {"loss": str(value)})
    assert (two["held_out_loss"], two["not_finite"], two["loss"]) == (None, {"held_out_loss": str(value)}, 1.5)


def test_a_second_run_in_the_folder_sets_the_firsts_file_aside(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        with Metrics(tmp_path, Info()) as metrics:
            take(metrics, step)
    with Metrics(tmp_path, Info()):  # one that writes nothing leaves no empty file to be set aside
        pass
    with Metrics(tmp_path, Info()) as metrics:
        take(metrics, 5)
    names = ["rank_00_metrics.1.jsonl", "rank_00_metrics.2.jsonl", "rank_00_metrics.3.jsonl", "rank_00_metrics.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [[line["step"] for line in read(tmp_path, name)] for name in names] == [[1], [2], [3], [5]]


def test_lines_that_wait_for_the_profiler_come_late_but_in_order(tmp_path: Path) -> None:
    with Metrics(tmp_path, Info()) as metrics:
        take(metrics, 1)
        metrics.hold_from(2)
        for step in (2, 3):
            take(metrics, step)
            metrics.hold_from(step)
        assert [line["step"] for line in metrics.flush()] == [1, 2, 3], "the console need not wait"
        assert [line["step"] for line in read(tmp_path)] == [1]
        metrics.release({2: 0.5, 3: 0.75})
        metrics.flush()
        assert [(line["step"], line.get("comm_ms")) for line in read(tmp_path)] == [(1, None), (2, 0.5), (3, 0.75)]
        metrics.hold_from(4)
        take(metrics, 4)
        metrics.flush()
    assert [line["step"] for line in read(tmp_path)] == [1, 2, 3, 4], "the end waits for no window"


def test_a_failure_leaves_the_lines_before_it(tmp_path: Path) -> None:
    def fail() -> None:
        with Metrics(tmp_path, Info()) as metrics:
            take(metrics, 1)
            metrics.start_step(2)
            raise FloatingPointError("the loss is nan")

    with pytest.raises(FloatingPointError):
        fail()
    assert [line["step"] for line in read(tmp_path)] == [1]


def test_no_more_than_so_many_steps_are_held_and_an_odd_one_among_them_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PENDING", 10)
    with Metrics(tmp_path, Info()) as metrics:
        for step in range(1, 36):
            take(metrics, step, loss=math.nan if step == 4 else 1.0)
            assert step - len(read(tmp_path)) <= 10
        told = metrics.flush()
    assert [line["step"] for line in told] == [4, *range(31, 36)]
    assert [line["step"] for line in read(tmp_path)] == list(range(1, 36))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/out/rank_00_metrics.jsonl cannot be written: .* AORTA_OUTPUT_DIR"):
        Metrics(tmp_path / "file" / "out", Info())


def test_a_full_disk_ends_the_metrics_and_not_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    metrics = Metrics(tmp_path, Info())
    assert metrics._file is not None
    metrics._file.close()
    metrics._file = full.open("w")
    for step in (1, 2):
        take(metrics, step)
        metrics.flush()
    metrics.close()
    told = capsys.readouterr().err
    assert "No space left on device; no more metrics are written" in told
    assert told.count("warning") == 1


class Falling:
    name = "Falling"

    def __init__(self) -> None:
        self.taken: list[tuple[int, dict[str, float]]] = []
        self.ended: list[bool] = []

    def log(self, step: int, when: datetime, values: dict[str, float]) -> None:
        assert when.utcoffset() == timedelta(0)
        if step == 3:
            raise RuntimeError("the connection is gone")
        self.taken.append((step, values))

    def close(self, *, failed: bool) -> None:
        self.ended.append(failed)


def test_a_tracker_gets_the_figures_and_one_that_fails_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    falling, steady = Falling(), Falling()
    with Metrics(tmp_path, Info(), trackers=Trackers([falling])) as metrics:
        for step in range(1, 5):
            take(metrics, step, loss=math.nan if step == 2 else 1.0)
        metrics.evaluated(4, 0.5)
    assert [step for step, _ in falling.taken] == [1, 2]
    figures = read(tmp_path)[0]
    assert falling.taken[0][1] == pytest.approx({name: figures[name] for name in falling.taken[0][1]})
    assert "loss" in falling.taken[0][1]
    assert not {"loss", "time", "host", "rank", "step"} & set(falling.taken[1][1])
    assert (falling.ended, capsys.readouterr().err.count("Falling failed and gets no more figures")) == ([], 1)
    with pytest.raises(KeyError), Metrics(tmp_path, Info(), trackers=Trackers([steady])) as metrics:
        raise KeyError
    assert steady.ended == [True]


def test_wandb_that_is_not_installed_is_left_out_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with Metrics(
        tmp_path, Info(), trackers=open_trackers(Logging(wandb=True), Info(), tmp_path, settings={})
    ) as metrics:
        take(metrics, 1)
    assert "wandb is not installed" in capsys.readouterr().err
    assert len(read(tmp_path)) == 1


def test_the_profiler_names_ranks_that_there_are_not(tmp_path: Path) -> None:
    settings = Profiling(enabled=True, ranks=(0, 4))
    with (
        Metrics(tmp_path, Info()) as metrics,
        pytest.raises(ConfigError, match=r"profiling.ranks names 4, but the ranks of this run are 0 to 0"),
        profile_steps(settings, Info(), tmp_path, metrics),
    ):
        pass


def test_the_page_names_every_figure_and_no_other(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    profiling = Profiling(enabled=True, wait=0, warmup=0, active=1, repeat=1)
    with Metrics(tmp_path, Info()) as metrics, profile_steps(profiling, Info(), tmp_path, metrics) as profile:
        metrics.evaluated(0, 3.0)
        for step in (1, 2):
            with profile.step(step):
                take(metrics, step, loss=math.nan)
            metrics.evaluated(step, 3.0)
    lines = read(tmp_path)
    assert {name for line in lines for name in line} == named
    assert [line.get("comm_ms") for line in lines] == [None, 0.0, None]
    everywhere = set.intersection(*(set(line) for line in lines))
    assert everywhere - {"held_out_loss"} == set(re.findall(r"^\| `(\w+)` \|.*\| always \|$", page, re.MULTILINE))
