from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import build_plan

from orchestrator.errors import NotReadyError
from orchestrator.phases.record import Record, end_entry, make_experiment, told_as_full_disk
from orchestrator.plan.paths import launches_folder
from orchestrator.settings import build_settings
from orchestrator.values import Node, Verdict


def make_record(tmp_path: Path) -> Record:
    settings = build_settings({"experiments_dir": str(tmp_path / "experiments")}, {})
    return Record(make_experiment(settings, "run"), settings, [Node(name="a", host="a")], "run")


def test_a_run_that_kill_could_not_find_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("no folder")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(NotReadyError, match="cannot be remembered") as caught:
        make_record(tmp_path).open()
    assert (caught.value.exit_code, caught.value.where) == (3, str(launches_folder(tmp_path / "home")))


@pytest.mark.parametrize("unasked", [(), ("a",)])
def test_a_node_that_was_not_asked_keeps_the_run_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unasked: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    record = make_record(tmp_path)
    record.open()
    record.end(Verdict(state="failed", exit_code=1, cause="x", unasked=unasked))
    entry = json.loads((launches_folder(tmp_path) / "run.json").read_text())
    assert entry["live"] == bool(unasked)


def test_a_kill_before_the_start_does_not_hide_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    record = make_record(tmp_path)
    record.open()
    entry = launches_folder(tmp_path) / "run.json"
    end_entry(entry, live=False)
    record.note_plan(build_plan(1))
    assert json.loads(entry.read_text())["live"]


def test_a_full_disk_here_is_an_error_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = make_record(tmp_path).paths
    with pytest.raises(NotReadyError, match="cannot be written: No such") as caught, told_as_full_disk(paths):
        (tmp_path / "gone" / "file").write_text("x")
    assert caught.value.where == str(paths.root)


def test_keys_are_found_from_another_folder_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = build_settings({"experiments_dir": "experiments", "identity": "keys/one"}, {})
    nodes = [Node(name="a", host="a", key="keys/two"), Node(name="b", host="b")]
    document = Record(make_experiment(settings, "run"), settings, nodes, "run").document
    assert document["ssh"]["identity"] == str(tmp_path / "keys/one")
    assert [node["key"] for node in document["nodes"]] == [str(tmp_path / "keys/two"), None]
