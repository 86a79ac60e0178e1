"""What ls knows of the runs of this machine, and the notes on them."""

from __future__ import annotations

import fcntl
import json
import os
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.house_actions import choose_old
from orchestrator.output.runs_table import RunLine, choose_lines, render_runs, runs_document
from orchestrator.phases.notes import add_note, latest_note
from orchestrator.phases.remembered import read_remembered
from orchestrator.plan.paths import launches_folder

LAUNCHED = "2026-11-28T05:06:44.847Z"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    launches_folder(tmp_path).mkdir(parents=True)
    return tmp_path


def plant(home: Path, run_id: str, record: dict[str, Any] | None, *, live: bool = False) -> Path:
    """Write an entry and the record that it leads to; None: there is no experiment directory."""
    experiment = home / "experiments" / run_id
    entry = {"schema": 1, "run_id": run_id, "experiment": str(experiment), "live": live, "ssh": {}}
    entry["nodes"] = [{"name": f"node{k}", "host": f"node{k}"} for k in range(1, 5)]
    (launches_folder(home) / f"{run_id}.json").write_text(json.dumps(entry))
    if record is not None:
        experiment.mkdir(parents=True)
        (experiment / "run.json").write_text(
            json.dumps({"run_id": run_id, "timings": {"launched": LAUNCHED}, **record})
        )
    return experiment


def lines_of(home: Path) -> dict[str, RunLine]:
    return {one.line.run_id: one.line for one in read_remembered(home)}


def shown(*lines: RunLine) -> list[str]:
    return render_runs(lines, time.time()).plain.splitlines()


def test_a_finished_run_is_told_with_its_verdict_and_its_latest_note(home: Path) -> None:
    first = {"rank": 3, "node": "node2", "error": "ValueError: batch 17\x1b[2J holds no tokens" + " and more" * 20}
    verdict = {"exit_code": 1, "cause": "an exception", "first_failure": first}
    experiment = plant(home, "run_1", {"state": "failed", "verdict": verdict})
    add_note(experiment, "lr too high")
    add_note(experiment, "no, the data")
    line = lines_of(home)["run_1"]
    assert (line.state, line.finished, line.exit_code, line.note) == ("failed", True, 1, "no, the data")
    head, row = shown(line)
    assert head.split() == ["RUN", "AGE", "NODES", "STATE"]
    assert "4  node[1-4]" in row
    assert "failed · exit code 1 · rank 3 on node2: ValueError: batch 17 holds no tokens" in row
    assert row.endswith("… · note: no, the data")
    assert "\x1b" not in row


def test_a_run_that_nobody_watches_is_told_how_to_go_on_with(home: Path) -> None:
    plant(home, "run_1", {"state": "running"}, live=True)
    assert shown(lines_of(home)["run_1"])[1].endswith("running · no controller: aorta-launch attach run_1")
    with (launches_folder(home) / "run_1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert lines_of(home)["run_1"].controlled
        assert shown(lines_of(home)["run_1"])[1].endswith("  running")
    assert not lines_of(home)["run_1"].controlled


def test_a_run_of_which_something_may_be_left_is_told_how_to_end(home: Path) -> None:
    plant(home, "run_1", {"state": "lost", "verdict": {"exit_code": 4}}, live=True)
    assert "something of it may be left: aorta-launch kill run_1" in shown(lines_of(home)["run_1"])[1]


def test_whatever_is_broken_is_told_and_nothing_crashes(home: Path) -> None:
    folder = launches_folder(home)
    broken = {
        "garbage": "{",
        "list": "[]",
        "number": "7",
        "other_id": json.dumps({"run_id": "x", "experiment": "/e", "live": True, "nodes": [], "ssh": {}}),
        "no_nodes": json.dumps({"run_id": "no_nodes", "experiment": "/e", "live": True, "nodes": ["a"], "ssh": {}}),
        "odd_path": json.dumps({"run_id": "odd_path", "experiment": 5, "live": True, "nodes": [], "ssh": {}}),
    }
    for name, text in broken.items():
        (folder / f"{name}.json").write_text(text)
    (folder / "bytes.json").write_bytes(b"\xff\xfe\0")
    (folder / "folder.json").mkdir()
    (folder / "dangling.json").symlink_to("/nowhere/at/all")
    plant(home, "gone", None)
    plant(home, "gone_live", None, live=True)
    plant(home, "odd_record", {"run_id": "another"})
    (plant(home, "torn_record", {}) / "run.json").write_text("{")
    plant(home, "odd_values", {"state": 3, "verdict": [], "timings": {"launched": 5}})
    (
        plant(home, "odd_first", {"state": "failed", "verdict": {"first_failure": 5, "exit_code": "?"}}) / "notes.jsonl"
    ).write_text("{")
    lines = lines_of(home)
    assert {line.run_id for line in lines.values() if "entry cannot be read" in line.problem} == {
        *broken,
        "bytes",
        "folder",
        "dangling",
    }
    assert {line.run_id for line in lines.values() if "directory is gone" in line.problem} == {"gone", "gone_live"}
    assert {line.run_id for line in lines.values() if "no record" in line.problem} == {"odd_record", "torn_record"}
    assert (lines["gone"].state, lines["gone_live"].state, lines["gone_live"].finished) == ("ended", "live", False)
    assert len(shown(*lines.values())) == 1 + len(lines)
    json.dumps(runs_document(list(lines.values()), time.time(), 0))


def test_the_latest_twenty_and_whatever_may_live_are_shown_newest_last(home: Path) -> None:
    plant(home, "old_live", {"state": "running", "timings": {"launched": "2026-11-01T00:00:00Z"}}, live=True)
    for day in range(1, 26):
        moment = f"2026-11-{day:02d}T01:00:00Z"
        plant(
            home, f"run_{day:02d}", {"state": "succeeded", "verdict": {"exit_code": 0}, "timings": {"launched": moment}}
        )
    every = [one.line for one in read_remembered(home)]
    assert len(every) == 26
    few = [line.run_id for line in choose_lines(every, every=False)]
    assert few == ["old_live", *(f"run_{day:02d}" for day in range(6, 26))]
    assert len(choose_lines(every, every=True)) == 26


def test_nothing_remembered_is_no_error(tmp_path: Path) -> None:
    assert read_remembered(tmp_path) == []


def note_many(experiment: str, who: int) -> None:
    for number in range(50):
        add_note(Path(experiment), f"{who}.{number}")


def test_notes_of_several_at_once_are_all_there(tmp_path: Path) -> None:
    people = [get_context("fork").Process(target=note_many, args=(str(tmp_path), who)) for who in range(4)]
    for one in people:
        one.start()
    for one in people:
        one.join()
    notes = [json.loads(line)["text"] for line in (tmp_path / "notes.jsonl").read_text().splitlines()]
    assert sorted(notes) == sorted(f"{who}.{number}" for who in range(4) for number in range(50))


def test_a_note_survives_a_line_that_was_cut_short_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    assert latest_note(tmp_path) == ""
    (tmp_path / "notes.jsonl").write_text('{"time": "x", "text": "whole"}\n{"time": "y", "te')
    assert latest_note(tmp_path) == "whole"
    add_note(tmp_path, os.fsdecode(b"caf\xe9"))
    assert latest_note(tmp_path) == "caf\\xe9"
    with pytest.raises(UsageError, match="gone"):
        add_note(tmp_path / "nowhere", "x")


@pytest.mark.parametrize(
    ("record", "uncollected"),
    [
        ({"state": "succeeded", "went": 1.0}, True),
        ({"state": "failed", "went": 1.0, "timings": "torn"}, True),
        ({"state": "succeeded", "went": 1.0, "timings": {"collected": LAUNCHED}}, False),
        ({"state": "not started", "went": None}, False),
        ({"state": "unknown"}, False),
        (None, False),
    ],
)
def test_a_run_whose_outputs_never_came_is_known_by_its_record(
    home: Path, record: dict[str, Any] | None, *, uncollected: bool
) -> None:
    plant(home, "run_1", record)
    (one,) = read_remembered(home)
    assert one.uncollected == uncollected
    assert choose_old([one], 1, lose_outputs=False)[0] == ("run_1",)
    kept, old, left = choose_old([one], 0, lose_outputs=False)
    assert (kept, [known.run_id for known in old], left) == (
        ((), [], ("run_1",)) if uncollected else ((), ["run_1"], ())
    )
    assert choose_old([one], 0, lose_outputs=True) == ((), [one.known], ())
