"""Makes one failure happen, and holds what the launcher says of it against its row."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Completed, start_cluster
from scenes import row_param

from .row import Live
from .stage import Stage

EMPTY_S = 15.0
SAME = ("state", "family", "cause", "confidence", "rule", "remedy", "first_failure", "ranks")
"""What `why` has to say as the run itself did."""


def parametrize(rows: Sequence[Live], *marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """One test a row."""
    params = [row_param(row, row.id, marks, long=row.long, torch=row.torch) for row in rows]
    return pytest.mark.parametrize("row", params)


def play(row: Live, nodes3: Callable[[], Cluster], tmp_path: Path) -> None:
    """Play one row from the launch to the empty nodes."""
    begin = time.monotonic()
    with ExitStack() as undo:
        cluster = undo.enter_context(start_cluster(len(row.layout))) if row.fresh else nodes3()
        stage = Stage(row, cluster, tmp_path, undo)
        row.prepare(stage)
        stage.start()
        undo.callback(end_run, stage)
        row.inject(stage)
        done = stage.wait()
        print(done.stderr)
        check_verdict(stage, done)
        check_headline(stage, done)
        check_evidence(stage)
        check_why(stage)
        row.mend(stage)
        for k in stage.numbers:
            if cluster.alive(k):
                cluster.wait_process_table(k, stage.scene.before[k], EMPTY_S)
    print(f"{row.id}: {time.monotonic() - begin:.1f} s")


def end_run(stage: Stage) -> None:
    """Leave nothing behind when a row fails half way: the nodes belong to other rows too."""
    stage.launcher.kill()
    if stage.row.fresh or not stage.scene.runs():
        return
    if any(stage.cluster.process_table(k) != stage.scene.before[k] for k in stage.numbers):
        stage.scene.verb("kill", "--all", "--yes", "--grace", "0s")


def check_verdict(stage: Stage, done: Completed) -> None:
    """Family, culprit, its end and a word of the cause are those of the row."""
    row, verdict = stage.row, stage.scene.verdict()
    said = json.dumps(verdict, indent=1)
    assert (done.exit_code, verdict["state"]) == (row.exit_code, row.state), f"{done}\n{said}"
    assert verdict["family"] in row.family, said
    first: dict[str, Any] = verdict["first_failure"] or {}
    assert first.get("rank") in row.right_ranks, said
    if row.node_rank is not None:
        assert first.get("node_rank") == row.node_rank, said
    if first.get("rank") is not None:
        check_place(stage, first)
    alike = bool(row.ranks) and first.get("rank") is None
    if not alike and (row.code is not None or row.signal is not None):
        assert (first["exit_code"], first["signal"]) == (row.code, row.signal), said
    assert re.search(row.word, verdict["cause"], re.IGNORECASE), said
    assert verdict["rule"], said
    assert verdict["confidence"] in ("certain", "likely", "unknown"), said
    if row.where:
        assert row.where in first["traceback"], said
    if row.together:
        # Some may have been stopped before they came to it.
        ended = {event["rank"] for event in stage.scene.events("rank_exit") if event["code"]}
        assert set(verdict["ranks"]) == ended or len(ended) == 1, said
    if not row.knowable:
        assert verdict["confidence"] != "certain", said
    assert verdict["survivors"] == [], said
    assert first.get("rank") not in verdict["stopped"], said


def check_place(stage: Stage, first: dict[str, Any]) -> None:
    """A named rank is where the plan has it."""
    k = stage.node_of(first["rank"])
    assert first["node_rank"] == k - 1, first
    assert first["node"] == stage.cluster.address(k), first
    assert first["local_rank"] == first["rank"] - sum(stage.row.layout[: k - 1]), first


def check_headline(stage: Stage, done: Completed) -> None:
    """The page on the screen names what the record names."""
    word = {"failed": "FAILED", "lost": "LOST", "timed out": "TIMED OUT"}[stage.row.state]
    (headline,) = (line for line in done.stderr.splitlines() if line.startswith(f"{word} after "))
    verdict = stage.scene.verdict()
    first = verdict["first_failure"]
    if first and first["rank"] is not None:
        assert f"rank {first['rank']} (node {first['node_rank']} {first['node']}" in headline, headline
    elif first:
        assert f"node {first['node_rank']} {first['node']}" in headline, headline
    assert " ".join(verdict["cause"].split()) in headline, headline


def check_evidence(stage: Stage) -> None:
    """Every file is there, every line number is one of its lines, and one of the lines holds the row's words."""
    lines = []
    evidence = stage.scene.verdict()["evidence"]
    for one in evidence:
        path = stage.scene.experiment / one["file"]
        assert path.exists(), one
        if one["line"] is not None:
            whole = path.read_text(errors="replace").split("\n")
            assert 1 <= one["line"] <= len(whole), one
            lines.append(whole[one["line"] - 1])
    if stage.row.says:
        assert any(stage.row.says in line for line in lines), f"{evidence}\n{lines}"


def check_why(stage: Stage) -> None:
    """`why` gives the same verdict again."""
    done = stage.scene.verb("why", stage.scene.experiment.name, "--json")
    again = json.loads(done.stdout)
    assert again["schema"] == 1
    verdict = stage.scene.verdict()
    assert {name: again["verdict"].get(name) for name in SAME} == {name: verdict.get(name) for name in SAME}, done
