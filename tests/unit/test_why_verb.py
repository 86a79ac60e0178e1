"""The verb why on runs of ours: the page that was shown, and what is judged where nobody lived to show one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import build_plan

from orchestrator.cli import main
from orchestrator.output.plan_text import plan_document
from orchestrator.output.verdict_text import verdict_document
from orchestrator.phases import control
from orchestrator.plan.paths import ExperimentPaths, launches_folder
from orchestrator.values import FirstFailure, Verdict

TRACE = "Traceback (most recent call last):\n  File \"/w/a.py\", line 3, in f\n    x\nKeyError: 'tokens'\n"
VERDICT = Verdict(
    state="failed",
    exit_code=1,
    cause="ValueError: the page that was shown",
    family="CODE",
    first_failure=FirstFailure(node="a", node_rank=1, rank=2, local_rank=0, time=1000.5, exit_code=3, error="e"),
    stopped=(0, 1),
)


def write_run(root: Path, verdict: Verdict | None, events: list[dict[str, Any]] | None = None, **more: Any) -> Path:
    plan = build_plan(2, 1)
    nodes = [{"name": node.node.name, "host": node.node.host} for node in plan.nodes]
    document = {"run_id": "run", "state": "running", "nodes": nodes, "plan": plan_document(plan), "went": 100.0, **more}
    paths = ExperimentPaths(root)
    paths.logs.mkdir(parents=True)
    paths.run_json.write_text(json.dumps({**document, **(verdict_document(verdict) if verdict else {})}))
    lines = [json.dumps({"time": "2026-11-27T00:00:00.000Z", **event}) for event in events or ()]
    paths.events_jsonl.write_text("\n".join(lines) + "\n")
    return root


def remember(home: Path, root: Path) -> None:
    entry = launches_folder(home) / "run.json"
    entry.parent.mkdir(parents=True)
    nodes = json.loads((root / "run.json").read_text())["nodes"]
    entry.write_text(
        json.dumps({"run_id": "run", "experiment": str(root), "live": False, "nodes": nodes, "ssh": {}, "control": {}})
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


ENDS: list[dict[str, Any]] = [
    {"kind": "rank", "at": 101.0, "node_rank": 0, "rank": 0, "local_rank": 0, "world_size": 3, "pid": 10, "ticks": 1},
    {"kind": "rank", "at": 101.0, "node_rank": 0, "rank": 1, "local_rank": 1, "world_size": 3, "pid": 11, "ticks": 1},
    {"kind": "rank", "at": 101.0, "node_rank": 1, "rank": 2, "local_rank": 0, "world_size": 3, "pid": 12, "ticks": 1},
    {
        "kind": "rank_exit",
        "at": 110.0,
        "node_rank": 0,
        "rank": 1,
        "local_rank": 1,
        "world_size": 3,
        "pid": 11,
        "ticks": 1,
        "code": 1,
        "signal": None,
        "after_stop": False,
    },
]


def test_the_page_that_was_shown_is_shown_again(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remember(home, write_run(tmp_path / "exp", VERDICT))
    for words in (["why"], ["why", "ru"], ["why", str(tmp_path / "exp")]):
        assert main(words) == 0
        page = capsys.readouterr().out
        assert "FAILED" in page
        assert "the page that was shown" in page
    assert main(["why", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(verdict_document(VERDICT)))


def test_a_folder_that_nobody_remembers_tells_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(write_run(tmp_path / "exp", VERDICT))]) == 0
    assert "the page that was shown" in capsys.readouterr().out


def test_a_run_without_a_verdict_is_judged_by_its_events_and_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_run(tmp_path / "exp", None, ENDS)
    ExperimentPaths(root).rank_err(1).write_text(TRACE)
    assert main(["why", str(root), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert (verdict["state"], verdict["family"], verdict["first_failure"]["rank"]) == ("failed", "CODE", 1)
    assert verdict["first_failure"]["exit_code"] == 1
    assert verdict["evidence"][0]["file"] == "logs/rank_0001.err"


def test_without_any_end_the_logs_that_are_there_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_run(tmp_path / "exp", None, ENDS[:3])
    (ExperimentPaths(root).logs / "node_1_b.txt").write_text(
        "".join(f"[rank 2] [rank2]: {line}\n" for line in TRACE.splitlines())
    )
    assert main(["why", str(root), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert (verdict["family"], verdict["first_failure"]["rank"]) == ("CODE", 2)


def test_a_torn_line_of_events_hides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_run(tmp_path / "exp", None, ENDS)
    with ExperimentPaths(root).events_jsonl.open("a") as file:
        file.write('{"kind": "rank_exit", "at": "never"}\n{"kind": "rank_ex')
    assert main(["why", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["first_failure"]["rank"] == 1


def test_a_run_that_goes_on_has_no_answer_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "has_controller", lambda _: True)
    assert main(["why", str(write_run(tmp_path / "exp", None))]) == 2
    assert "is not over" in capsys.readouterr().err


def test_a_run_that_was_never_planned_has_nothing_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(write_run(tmp_path / "exp", None, plan=None))]) == 2
    assert "nothing was started" in capsys.readouterr().err


def test_without_a_word_and_without_a_run_there_is_nothing_to_tell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why"]) == 2
    assert "no run is known here" in capsys.readouterr().err
