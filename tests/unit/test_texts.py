from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runs import build_plan

from orchestrator.output.verdict_text import verdict_document
from orchestrator.phases.texts import build_texts
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.values import EnvValue, Evidence, FirstFailure, Verdict


def test_what_was_given_as_a_secret_is_in_no_text_that_a_verdict_reads(tmp_path: Path) -> None:
    plan = build_plan(1)
    secret = EnvValue(name="MY_LOGIN", value="open sesame", origin="flag --env", secret=True)
    plan = replace(plan, nodes=(replace(plan.nodes[0], env=(secret,)),))
    paths = ExperimentPaths(tmp_path)
    for path in (paths.rank_err(0), paths.rank_out(0), paths.error_file(0), paths.agent_err(0)):
        path.parent.mkdir(exist_ok=True)
        path.write_text("no login with open sesame\nhere\n")
    texts = build_texts(plan, paths, {})
    said = [texts.rank_err(0), texts.rank_out(0), texts.rank_error_file(0).decode(), texts.agent_err(0)]
    assert said == ["no login with ***\nhere\n"] * 4


def test_what_looks_like_a_secret_is_in_no_document_of_a_verdict() -> None:
    said = "401 for https://ada:pa55word@hub/x?token=0123456789abcdef"
    first = FirstFailure(node="n", node_rank=0, error=said)
    verdict = Verdict(state="failed", exit_code=1, cause=said, reason=said, last_lines=(said,), first_failure=first)
    assert "pa55word" not in str(verdict_document(verdict))
    assert "abcdef" not in str(verdict_document(verdict))


def test_lines_of_a_tail_are_counted_from_the_begin_of_the_file(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    paths.logs.mkdir()
    paths.rank_err(0).write_text("x" * 99 + "\n" + "".join(f"line {number:05}\n" for number in range(20000)))
    texts = build_texts(build_plan(1), paths, {})
    tail = texts.rank_err(0).split("\n")
    place = texts.place(Evidence(file="logs/rank_0000.err", line=len(tail) - 1))
    assert place == Evidence(file="logs/rank_0000.err", line=20001)
    assert texts.place(Evidence(file="logs/rank_0001.err", line=1)) is None
