"""What a record says of a run is what another process takes over."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from runs import build_plan

from orchestrator.errors import UsageError
from orchestrator.output.plan_text import plan_document
from orchestrator.output.verdict_text import verdict_document
from orchestrator.phases.known_runs import KnownRun
from orchestrator.phases.saved_run import parse_verdict, read_saved_run
from orchestrator.phases.takeover import read_events
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.values import EnvValue, Evidence, FirstFailure, Verdict

VERDICT = Verdict(
    state="failed",
    exit_code=1,
    cause="ValueError: x",
    first_failure=FirstFailure(node="a", node_rank=1, rank=2, local_rank=0, time=1000.5, exit_code=3, error="e"),
    stopped=(1, 2),
    evidence=(Evidence(file="logs/rank_0002.err", line=4),),
    remedy="look",
    duration_s=1.5,
    survivors=(("a", 7, "sleep"),),
    unasked=("b",),
)


def known(tmp_path: Path, processes: tuple[int, ...] = (2, 1)) -> KnownRun:
    nodes = tuple(node.node for node in build_plan(*processes).nodes)
    return KnownRun(run_id="run", entry=tmp_path / "e.json", experiment=str(tmp_path), live=True, nodes=nodes, ssh={})


def test_plan_and_verdict_come_back_as_they_were(tmp_path: Path) -> None:
    plan = build_plan(2, 1)
    secret = EnvValue(name="TOKEN", value="hidden", origin="--env", secret=True)
    nodes = tuple(dataclasses.replace(node, env=(secret,)) for node in plan.nodes)
    document = {
        "state": "failed",
        "timings": {},
        "plan": plan_document(dataclasses.replace(plan, nodes=nodes)),
        "went": 12.5,
        "versions": [{"node_rank": 1, "clock_offset_s": -2.0}, {"node_rank": 0, "clock_offset_s": None}],
        **verdict_document(VERDICT),
    }
    (tmp_path / "run.json").write_text(json.dumps(document))
    saved = read_saved_run(known(tmp_path))
    assert saved.plan == plan, "all but the ranks' environment, which may be secret"
    assert saved.verdict == VERDICT
    assert (saved.state, saved.went, saved.complete) == ("failed", 12.5, False)
    assert saved.clock_offsets == {0: 0.0, 1: -2.0}


def test_every_field_of_a_verdict_survives() -> None:
    document = json.loads(json.dumps(verdict_document(VERDICT)["verdict"]))
    assert parse_verdict(document) == VERDICT
    assert set(document) >= {field.name for field in dataclasses.fields(Verdict)}


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"state": "x", "plan": {"run_id": "run"}}'])
def test_a_record_that_is_none_is_told_with_the_way_out(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read_saved_run(known(tmp_path))
    assert "aorta-launch kill run" in caught.value.remedy


def test_a_record_of_a_run_that_was_never_planned(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"state": "pushing"}')
    saved = read_saved_run(known(tmp_path))
    assert (saved.plan, saved.verdict, saved.went, saved.complete) == (None, None, None, False)


def test_events_of_the_latest_attempt_are_read_and_a_torn_line_is_not(tmp_path: Path) -> None:
    lines = ['{"kind": "attempt", "number": 1}', '{"kind": "rank", "at": 1}', '{"kind": "attempt", "number": 2}']
    text = "\n".join([*lines, '{"kind": "stop", "cause": "failure"}', '{"kind": "ra'])
    (tmp_path / "events.jsonl").write_text(text)
    assert [event["kind"] for event in read_events(ExperimentPaths(tmp_path))] == ["attempt", "stop"]
    assert read_events(ExperimentPaths(tmp_path / "nowhere")) == []
