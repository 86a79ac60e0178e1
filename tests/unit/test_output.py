from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from orchestrator.facts import Facts
from orchestrator.output.checks_document import checks_document
from orchestrator.output.checks_table import ChecksTable, fold_found
from orchestrator.output.checks_text import is_ready, render_checks
from orchestrator.output.console import Talk, build_console, wants_color
from orchestrator.output.kill_text import kill_document, kill_exit, render_kill
from orchestrator.output.plan_text import plan_document, render_commands, render_environment, render_plan
from orchestrator.output.verdict_text import render_verdict, verdict_document
from orchestrator.values import (
    EnvValue,
    Evidence,
    Exit,
    Finding,
    FirstFailure,
    Node,
    NodePlan,
    Plan,
    StopReport,
    Verdict,
)


def page(words: RenderableType, color: str = "never") -> str:
    stream = io.StringIO()
    console = build_console(stream, color, {})
    Talk(err=console, out=console, verbosity=0, as_json=False).say(words)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def make_plan(count: int = 2) -> Plan:
    nodes = tuple(
        NodePlan(
            node_rank=rank,
            node=Node(name=f"node-{rank}", host=f"node-{rank}"),
            processes=8,
            first_rank=8 * rank,
            address=f"10.0.0.{rank + 1}",
            interface="eth1",
            python="/opt/venv/bin/python",
            workdir="/home/u/my code",
            run_folder=f"/home/u/.aorta/runs/r/{rank}",
            argv=(
                "/opt/venv/bin/python",
                "-m",
                "torch.distributed.run",
                "--",
                "train.py",
                "a b",
                "$(x)",
                "it's\n[red]",
            ),
            env=(
                EnvValue(name="OMP_NUM_THREADS", value="2", origin="aorta-launch"),
                EnvValue(name="AORTA_NODE_RANK", value=str(rank), origin="aorta-launch"),
                EnvValue(name="GREETING", value="[bold]$HOME ž", origin="--env"),
                EnvValue(name="API_TOKEN", value="hunter2", origin="--env-file .env", secret=True),
            ),
        )
        for rank in range(count)
    )
    return Plan(
        run_id="multinode_1-k3f9",
        attempt=0,
        project="/p",
        nodes=nodes,
        master_addr="10.0.0.1",
        master_port=29500,
        script=("train.py", "a b"),
        grace_s=30,
        failure_grace_s=2,
    )


def test_a_plan_shows_every_node_with_its_ranks() -> None:
    text = page(render_plan(make_plan()))
    assert "16 ranks on 2 nodes · rendezvous at 10.0.0.1 port 29500" in text
    assert "on every node: interface eth1 · python /opt/venv/bin/python" in text
    assert re.search(r"1 node-1 +8-15 +10\.0\.0\.2", text)


def test_the_environment_shows_origins_and_no_secret() -> None:
    text = page(render_environment(make_plan()))
    assert re.search(r"GREETING +--env +all +\[bold\]\$HOME ž\n", text)
    assert re.search(r"API_TOKEN +--env-file \.env +all +•••", text)
    assert re.search(r"AORTA_NODE_RANK +aorta-launch +node-1 +1\n", text)
    assert "hunter2" not in text


def test_nothing_that_is_shown_of_a_plan_holds_a_secret() -> None:
    plan = make_plan()
    assert "hunter2" not in page(render_plan(plan)) + render_commands(plan) + json.dumps(plan_document(plan))
    assert "API_TOKEN" in render_commands(plan)


def test_the_commands_start_what_the_plan_says(tmp_path: Path) -> None:
    node = make_plan().nodes[0]
    shown = tmp_path / "shown.py"
    shown.write_text("import json, os, sys\nprint(json.dumps([os.getcwd(), sys.argv[1:], os.environ['GREETING']]))\n")
    (tmp_path / "my code").mkdir()
    text = render_commands(make_plan(1))
    text = text.replace("/home/u", str(tmp_path)).replace(
        "/opt/venv/bin/python -m torch.distributed.run", f"{shlex.quote(sys.executable)} {shown}"
    )
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [str(tmp_path / "my code"), list(node.argv[3:]), "[bold]$HOME ž"]
    folder = Path(node.run_folder.replace("/home/u", str(tmp_path)))
    assert {path.name for path in folder.iterdir()} == {"outputs", "diagnosis"}


def findings_of(count: int) -> tuple[list[Node], list[Finding]]:
    nodes = [Node(name=f"node{rank:02d}", host="h") for rank in range(count)]
    findings = [Finding(check="disk", status="ok", node_rank=rank, detail=f"{12 + rank}.0 ms") for rank in range(count)]
    findings += [
        Finding(check="torch", status="fail", node_rank=rank, detail="no torch [x]", remedy="install torch")
        for rank in (1, 2)
    ]
    findings.append(Finding(check="address", status="warn", detail="slow", remedy="look"))
    return nodes, findings


def test_a_check_is_one_row_with_a_column_for_each_node() -> None:
    assert page(render_checks(*findings_of(3))).splitlines() == [
        "check    0 node00  1 node01  2 node02  found",
        "disk     ok        ok        ok        12.0…14.0 ms",
        "torch              FAIL      FAIL",
        "address  warn",
        "",
        "FAIL torch · nodes node[01-02] · no torch [x]",
        "  → install torch",
        "warn address · slow",
        "  → look",
        "",
        "NOT READY · 3 nodes · 3 checks: 1 ok, 1 warn, 1 fail (--all shows them)",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 200])
def test_the_table_fits_the_terminal(count: int, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(ChecksTable(*findings_of(count), every=True))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 4
    assert all(len(line) <= width for line in lines)


def test_of_many_nodes_the_good_are_counted_and_the_bad_named() -> None:
    text = page(render_checks(*findings_of(200)))
    assert re.search(r"^check +200 nodes +found$", text, re.MULTILINE)
    assert "disk" not in text
    text = page(render_checks(*findings_of(200), every=True))
    assert re.search(r"^disk +ok \N{MULTIPLICATION SIGN}200 +12\.0…211\.0 ms$", text, re.MULTILINE)
    assert re.search(r"^torch +FAIL 1-2$", text, re.MULTILINE)
    assert len(text.splitlines()) < 20


def test_what_applies_to_no_node_has_a_row_only_when_asked_for() -> None:
    nodes = [Node(name="a", host="a"), Node(name="b", host="b")]
    findings = [Finding(check="gpu-free", status="skip", node_rank=rank, detail="no GPU") for rank in (0, 1)]
    findings.append(Finding(check="disk", status="ok", node_rank=0))
    assert "gpu-free" not in page(render_checks(nodes, findings))
    assert page(render_checks(nodes, findings)).endswith("2 checks: 1 ok, 1 skipped (--all shows them)")
    every = page(render_checks(nodes, findings, every=True))
    assert "skip gpu-free · all 2 nodes · no GPU" in every
    assert "READY · 2 nodes · 2 checks: 1 ok, 1 skipped" in every


def test_numbers_within_names_and_versions_are_not_measured() -> None:
    def found(*details: str) -> str:
        return fold_found([Finding(check="x", status="ok", node_rank=0, detail=detail) for detail in details])

    assert found("torch 2.13.0+cpu", "torch 2.13.0+cpu") == "torch 2.13.0+cpu"
    assert found("node1 is 10.0.0.1", "node2 is 10.0.0.2") == ""
    assert found("-0.5 s ± 0.1 s", "+0.2 s ± 0.3 s") == "-0.5…+0.2 s ± 0.1…0.3 s"
    assert found("8 GPUs", "") == ""


def test_a_nodes_words_cannot_steer_the_terminal() -> None:
    nodes = [Node(name="a", host="a")]
    text = page(render_checks(nodes, [Finding(check="x", status="fail", node_rank=0, detail="a\x1b[2J\x1b]0;t\x07b")]))
    assert "· ab\n" in text
    assert "\x1b" not in text


def test_a_long_remedy_is_neither_cut_nor_broken() -> None:
    remedy = "pip install " + "torch " * 60
    findings = [Finding(check="x", status="fail", node_rank=0, detail="d" * 300, remedy=remedy)]
    text = page(render_checks([Node(name="a", host="a")], findings))
    assert f"· {'d' * 300}\n  → {remedy.strip()}\n" in text


def test_ready_means_that_nothing_fails() -> None:
    nodes, findings = findings_of(3)
    assert not is_ready(findings)
    good = [finding for finding in findings if finding.status != "fail"]
    assert is_ready(good)
    assert "\nREADY · 3 nodes · 2 checks: 1 ok, 1 warn (--all shows them)" in page(render_checks(nodes, good))
    document = checks_document(nodes, [Facts(node_rank=rank) for rank in range(3)], findings)
    assert (document["schema"], document["ready"]) == (1, False)
    assert document["nodes"][1]["findings"][1] == {
        "check": "torch",
        "status": "fail",
        "detail": "no torch [x]",
        "remedy": "install torch",
        "why": "",
        "reason": "",
    }
    assert document["cluster"][0]["check"] == "address"


def test_a_kill_is_one_line_a_node() -> None:
    reports = [
        StopReport(node_rank=0, node="node-0", stopped=1),
        StopReport(node_rank=1, node="node-1", stopped=3, killed=1),
        StopReport(node_rank=2, node="node-2", found=False),
    ]
    assert page(render_kill(reports)).splitlines() == [
        "node-0: 1 process stopped, none left",
        "node-1: 3 processes stopped (1 killed), none left",
        "node-2: nothing of this run was there",
    ]
    assert kill_exit(reports) == Exit.DONE


def test_what_survived_or_could_not_be_asked_is_no_success() -> None:
    left = StopReport(node_rank=0, node="a", stopped=2, survivors=((77, "python train.py"),))
    silent = StopReport(node_rank=1, node="b", error="connection refused")
    assert "a: 2 processes stopped, 1 LEFT\n  pid 77  python train.py" in page(render_kill([left]))
    assert "not known: connection refused" in page(render_kill([silent]))
    assert kill_exit([left]) == kill_exit([silent]) == Exit.FAILED
    document = kill_document("run", [left, silent])
    assert document["clean"] is False
    assert document["nodes"][0]["survivors"] == [{"pid": 77, "command": "python train.py"}]


def make_failure() -> Verdict:
    moment = datetime(2026, 11, 27, 23, 20, 41, 500_000, tzinfo=UTC).timestamp()
    return Verdict(
        state="failed",
        exit_code=1,
        cause="RuntimeError: boom [red]",
        first_failure=FirstFailure(
            node="node-1",
            node_rank=1,
            rank=13,
            local_rank=5,
            time=moment,
            exit_code=1,
            error="RuntimeError: boom",
            traceback="train.py:88 in forward",
        ),
        stopped=tuple(range(13)),
        evidence=(Evidence(file="errors/rank_0013.json"), Evidence(file="logs/rank_0013.err", line=12)),
        remedy="fix it",
        duration_s=62.4,
    )


def test_a_failure_is_one_page() -> None:
    assert page(render_verdict(make_failure(), make_plan(), "experiments/r")).splitlines() == [
        "FAILED after 1m 02s · rank 13 (node 1 node-1 10.0.0.2, local rank 5) · RuntimeError: boom [red]",
        "  first failure  2026-11-27 23:20:41Z  RuntimeError: boom · exit code 1",
        "  where          train.py:88 in forward",
        "  others         13 ranks were stopped because of it",
        "  evidence       errors/rank_0013.json · logs/rank_0013.err:12",
        "  experiment     experiments/r",
        "  to do          fix it",
    ]


def test_a_run_that_was_stopped_names_no_culprit() -> None:
    verdict = Verdict(state="killed", exit_code=130, cause="stopped by Ctrl-C", stopped=(0, 1), duration_s=3)
    assert page(render_verdict(verdict, make_plan(), "experiments/r")).splitlines() == [
        "KILLED after 3.0s · stopped by Ctrl-C",
        "  stopped        2 ranks",
        "  experiment     experiments/r",
    ]


def test_a_place_in_the_pushed_code_is_named_as_the_project_knows_it() -> None:
    first = replace(make_failure().first_failure, traceback="/home/u/my code/lib/a.py:3 in f")  # type: ignore[type-var]
    text = page(render_verdict(replace(make_failure(), first_failure=first), make_plan(), "r"))
    assert "  where          lib/a.py:3 in f\n" in text


def test_of_many_nodes_a_launch_shows_the_first() -> None:
    assert len(page(render_plan(make_plan(64), every=False)).splitlines()) == 15
    assert "and 56 more nodes" in page(render_plan(make_plan(64), every=False))
    assert "63 node-63" in page(render_plan(make_plan(64)))
    shown = page(render_environment(make_plan(64)))
    assert re.search(r"AORTA_NODE_RANK +aorta-launch +node-0, others have others +0\n", shown)
    assert shown.count("AORTA_NODE_RANK") == 1


def test_every_end_has_its_headline() -> None:
    def head(**changed: Any) -> str:
        values: dict[str, Any] = {"exit_code": 0, "cause": "", "duration_s": 62.0}
        verdict = Verdict(**(values | changed))
        return page(render_verdict(verdict, make_plan(), "experiments/r")).splitlines()[0]

    assert head(state="succeeded") == "SUCCEEDED in 1m 02s · 16 ranks on 2 nodes · results in experiments/r"
    assert head(state="killed", cause="Ctrl-C") == "KILLED after 1m 02s · Ctrl-C"
    assert head(state="timed out", cause="time limit of 60 s") == "TIMED OUT after 1m 02s · time limit of 60 s"
    lost = FirstFailure(node="10.0.0.2", node_rank=1)
    assert head(state="lost", cause="no word for 60 s", first_failure=lost) == (
        "LOST after 1m 02s · node 1 10.0.0.2 · no word for 60 s"
    )


def test_survivors_are_named_in_the_verdict() -> None:
    verdict = Verdict(state="killed", exit_code=1, cause="Ctrl-C", survivors=(("node-1", 77, "python train.py"),))
    assert "  STILL RUNNING  node-1 pid 77  python train.py" in page(render_verdict(verdict, make_plan(), "r"))


def test_a_verdict_is_a_document() -> None:
    document = json.loads(json.dumps(verdict_document(make_failure())))
    assert document["schema"] == 1
    verdict = document["verdict"]
    assert verdict["first_failure"]["time"] == "2026-11-27T23:20:41.500Z"
    assert (verdict["first_failure"]["rank"], verdict["stopped"]) == (13, list(range(13)))
    assert verdict["evidence"][1] == {"file": "logs/rank_0013.err", "line": 12}


# ---------------------------------------------------------------- the voice


def test_colour_is_for_terminals_unless_told_otherwise() -> None:
    assert wants_color("auto", {}, terminal=True)
    assert not wants_color("auto", {}, terminal=False)
    assert not wants_color("auto", {"NO_COLOR": "1"}, terminal=True)
    assert wants_color("always", {"NO_COLOR": "1"}, terminal=False)
    assert not wants_color("never", {}, terminal=True)
    failure = render_verdict(make_failure(), make_plan(), "r")
    assert "\x1b[" in page(failure, "always")
    assert "\x1b" not in page(failure, "auto")


def test_a_character_that_the_locale_lacks_is_no_traceback() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    build_console(stream, "never", {}).print(render_verdict(make_failure(), make_plan(), "experiments/ž"))
    stream.flush()
    assert b"experiments/\\u017e" in raw.getvalue()
