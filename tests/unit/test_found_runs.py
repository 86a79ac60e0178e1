"""What the nodes know of runs, merged: two places that are one machine, ranks of which nothing lives, nodes not listed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import LinkError, UsageError
from orchestrator.node import processes
from orchestrator.phases.found_runs import Search, choose_found, describe, merge_answers, report_missing
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node

NODES = [Node(name=f"node{place}", host=f"10.0.0.{place}") for place in range(3)]


def entry(run_id: str, node_rank: int, *, live: bool = True, **more: Any) -> dict[str, Any]:
    state = "running" if live else "failed"
    return {"run_id": run_id, "node_rank": node_rank, "live": live, "state": state, "started": 1e9 + node_rank,
            "nodes": None, "hosts": [], **more}  # fmt: skip


def answer(machine: str, *entries: dict[str, Any]) -> dict[str, Any]:
    return {"machine": machine, "runs": list(entries)}


def search(**answers: dict[str, Any]) -> Search:
    told = {int(place[1:]): told for place, told in answers.items()}
    errors = {place: LinkError("no way") for place in range(len(NODES)) if place not in told}
    return Search(nodes=NODES, runs=merge_answers(told), errors=errors)


def test_the_node_rank_is_the_nodes_own_and_one_machine_counts_once() -> None:
    first = answer("a", entry("r", 2), entry("r", 0))
    (run,) = search(n0=first, n1=first, n2=answer("b", entry("r", 1, live=False))).runs
    assert run.where == {0: 0, 1: 2, 2: 0}
    assert (run.live_ranks, run.state, run.started) == ((0, 2), "running", 1e9)
    assert describe(run, NODES).startswith("r  running  on node0  since 2001-09-0")


def test_a_shared_home_shows_a_rank_where_it_lives() -> None:
    (run,) = search(n0=answer("a", entry("r", 0, live=False)), n1=answer("b", entry("r", 0)), n2=answer("c")).runs
    assert (run.where, run.live) == ({0: 1}, True)


def test_nodes_of_the_run_that_are_not_in_the_list_are_told() -> None:
    more: dict[str, Any] = {"nodes": 3, "hosts": ["10.0.0.0", "10.0.0.1", "10.9.9.9"]}
    found = search(n0=answer("a", entry("r", 0, **more)), n1=answer("b", entry("r", 1, **more)), n2=answer("c"))
    (report,) = report_missing(found, found.runs[0])
    assert (report.node, report.node_rank, bool(report.error)) == ("10.9.9.9", 2, True)
    # A node that could not be asked may be just that one.
    unasked = search(n0=answer("a", entry("r", 0, **more)), n1=answer("b", entry("r", 1, **more)))
    assert report_missing(unasked, unasked.runs[0]) == []
    assert [report.node for report in unasked.unasked] == ["node2"]


def test_which_run_is_meant() -> None:
    one = search(n0=answer("a", entry("aa1", 0), entry("old", 0, live=False)), n1=answer("b"), n2=answer("c"))
    assert [run.run_id for run in choose_found(one, None, all_runs=False)] == ["aa1"]
    assert [run.run_id for run in choose_found(one, "o", all_runs=False)] == ["old"]
    two = search(n0=answer("a", entry("aa1", 0), entry("aa2", 0)), n1=answer("b"), n2=answer("c"))
    assert len(choose_found(two, None, all_runs=True)) == 2
    for word, said in ((None, "2 runs live on these nodes"), ("aa", "beginning of 2 runs"), ("", "is empty"), ("aa3", "did you mean")):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            choose_found(two, word, all_runs=False)
    lost = search(n0=answer("a"), n1=answer("b"))
    assert choose_found(lost, "aa3", all_runs=False) == []


def test_a_machine_lists_its_runs_from_folders_and_from_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    own = processes.read_process(os.getpid())
    assert own is not None
    who = {"pid": own.pid, "ticks": own.ticks, "boot_id": processes.boot_id()}
    statuses = {
        "led/0": {"supervisor": who, "state": "running", "events": [{"ev": "ready", "time": 5.0}]},
        "over/1": {"supervisor": {**who, "ticks": 1}, "state": "failed", "events": []},
        "elsewhere/0": {"supervisor": {**who, "boot_id": "another"}, "state": "running", "events": []},
    }
    for name, status in statuses.items():
        folder = tmp_path / ".aorta/runs" / name
        folder.mkdir(parents=True)
        (folder / "status.json").write_text(json.dumps(status))
    marks = {"AORTA_RUN_ID": "orphan", "AORTA_NODE_RANK": "3", "AORTA_NNODES": "4", "AORTA_HOSTS": "a,b,c,d"}
    with subprocess.Popen(["/bin/sleep", "60"], env=marks) as sleeper:
        try:
            link = LocalLink(Node(name="a", host="127.0.0.1"))
            link.pythons = (sys.executable,)
            told = link.call("runs", {}, 20)
        finally:
            sleeper.kill()
    runs = {run["run_id"]: run for run in told["runs"] if run["run_id"] in ("led", "over", "elsewhere", "orphan")}
    assert {name: (run["node_rank"], run["live"], run["state"]) for name, run in runs.items()} == {
        "led": (0, True, "running"),
        "over": (1, False, "failed"),
        "orphan": (3, True, "supervisor gone"),
    }
    assert (runs["led"]["started"], runs["orphan"]["nodes"], runs["orphan"]["hosts"]) == (5.0, 4, ["a", "b", "c", "d"])
