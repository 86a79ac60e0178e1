"""How a run stands: its state out of many reports, when somebody has to take care of it, and the page."""

from __future__ import annotations

from typing import Any

from runs import build_plan

from orchestrator.output.status_table import render_gpus, render_status, status_document
from orchestrator.phases.status import fold_states
from orchestrator.run_status import NodeStatus, RunStatus
from orchestrator.values import Verdict

GAPS = [(0, 5), (8, 9), (10, 11), (20, 22)]
BACKGROUND = {"pid": 42, "mode": "background"}


def rank(number: int, **fields: Any) -> dict[str, Any]:
    base = {"rank": number, "local_rank": 0, "pid": 100 + number, "state": "running", "code": None, "signal": None}
    return {**base, "last_line": f"step {number} of rank {number}", "step": number, **fields}


def node(
    node_rank: int, state: str = "running", *, ended: bool = False, alive: bool = True, **fields: Any
) -> NodeStatus:
    report = {
        "node_rank": node_rank,
        "state": state,
        "ended": ended,
        "rebooted": False,
        "supervisor": {"pid": 1, "alive": alive, "suspended": False},
        "heartbeat_age_s": 2.0,
        "agent": 7,
        "ranks": [rank(2 * node_rank), rank(2 * node_rank + 1)],
        "gpus": [],
        **fields,
    }
    return NodeStatus(node_rank=node_rank, node=f"node{node_rank}", contact="ok", report=report)


def away(node_rank: int) -> NodeStatus:
    return NodeStatus(node_rank=node_rank, node=f"node{node_rank}", contact="lost", error="no answer", report={})


def absent(node_rank: int) -> NodeStatus:
    return NodeStatus(node_rank=node_rank, node=f"node{node_rank}", contact="ok", report={}, absent=True)


def run(*nodes: NodeStatus, **fields: Any) -> RunStatus:
    values: dict[str, Any] = {"run_id": "run", "experiment": "/e/run", "state": "running", "live": True, **fields}
    return RunStatus(nodes=nodes, **{"plan": build_plan(2, 2), **values})


def test_the_state_of_a_run_is_that_of_its_nodes() -> None:
    assert fold_states([node(0), node(1, "starting")], "") == "running"
    assert fold_states([node(0, "stopping"), node(1)], "") == "stopping"
    assert fold_states([node(0, "failed", ended=True), node(1)], "") == "running"
    assert fold_states([node(0, "failed", ended=True), node(1, "succeeded", ended=True)], "") == "failed"
    assert fold_states([node(0, "succeeded", ended=True)], "running") == "succeeded"
    assert fold_states([away(0)], "running") == "running"


def test_when_a_run_needs_a_controller() -> None:
    failed, done = node(0, "failed", ended=True), node(0, "succeeded", ended=True)
    assert not run(node(0), node(1)).needs_controller
    assert run(failed, node(1)).needs_controller
    assert run(node(0, alive=False), node(1)).needs_controller
    assert run(node(0, rebooted=True), node(1)).needs_controller
    assert not run(done, node(1)).needs_controller, "the others may still be at work"
    assert run(done, node(1, "succeeded", ended=True)).needs_controller
    assert not run(done, away(1)).needs_controller
    assert not run(failed, node(1), controller=BACKGROUND).needs_controller
    assert not run(failed, live=False).needs_controller
    assert not run(failed, plan=None).needs_controller
    assert run(absent(0), away(1), plan=None, unstarted=True).needs_controller, "nobody will ever start it"
    assert not run(absent(0), absent(1)).needs_controller
    assert not run(failed, verdict=Verdict(state="failed", exit_code=1, cause="x")).needs_controller


def test_the_page() -> None:
    gpus = [{"index": at, "used_mib": 61000, "total_mib": 81559, "util_percent": 86 + at} for at in range(2)]
    text = render_status(
        run(
            node(0, gpus=gpus), away(1), controller=BACKGROUND, age_s=192.0, note="lr halved", gaps={"rank_0.out": GAPS}
        )
    ).plain
    assert text.splitlines() == [
        "run  running  3m 12s",
        "controller pid 42, in the background",
        "note: lr halved",
        "rank_0.out: 9 bytes (0-4, 8-8, 10-10 and 1 more) were dropped on the node before they could be fetched",
        "experiment /e/run",
        "",
        "node     state    ranks  agent  heartbeat  GPUs                   step  last line",
        "0 node0  running  0-1    7      2s ago     2 GPUs 86 % 60/80 GiB  0-1   step 0 of rank 0",
        "1 node1  lost     2-3                                                   no answer",
    ]
    assert "no controller: aorta-launch attach run" in render_status(run(node(0))).plain
    silent = render_status(run(node(0), controller={"mode": "silent", "who": "pid 42 on here"})).plain
    assert "its controller, pid 42 on here, does not answer" in silent
    assert "kill -CONT" in silent


def test_words_of_nodes() -> None:
    assert node(0).word == "running"
    assert node(0, alive=False).word == "supervisor gone"
    assert node(0, "failed", alive=False, ended=True).word == "failed"
    assert node(0, supervisor={"pid": 1, "alive": True, "suspended": True}).word == "suspended"
    assert node(0, rebooted=True, alive=False).word == "rebooted"
    assert away(0).word == "lost"
    assert absent(0).word == "nothing here"
    assert not run(absent(0)).unasked
    assert NodeStatus(node_rank=0, node="n", contact="ok", error="no report", report={}).word == "no answer"
    final = NodeStatus(node_rank=0, node="n", contact="ok", report={"node_rank": 0, "state": "succeeded"})
    assert (final.word, final.ended) == ("succeeded", True)


def test_ranks_one_by_one_and_lines_that_are_cut() -> None:
    ended = [rank(0, state="exited", code=3, last_line="\x1b[2Jboom " + "x" * 300), rank(1, state="exited", signal=9)]
    seen = run(node(0, ranks=ended))
    lines = render_status(seen, width=60, every_rank=True).plain.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[-2].startswith("    rank 0  pid 100  exit code 3  0  boom xxx")
    assert "signal 9" in lines[-1]
    assert "0-1 (2 exited)" in render_status(seen).plain
    assert "\x1b" not in render_status(seen).plain


def test_gpus_in_a_few_words() -> None:
    assert render_gpus([]) == ""
    assert render_gpus(None, "nvidia-smi gave no answer within 5 s") == "no answer"
    assert render_gpus(None, "there is no nvidia-smi, amd-smi or rocm-smi") == ""
    odd = {"index": 0, "used_mib": None, "total_mib": None, "util_percent": None}
    assert render_gpus([odd]) == "1 GPU"


def test_the_document() -> None:
    document = status_document(run(node(0), away(1), controller=BACKGROUND, age_s=1.23456))
    assert (document["schema"], document["age_s"], document["controller"]) == (1, 1.235, BACKGROUND)
    first, second = document["nodes"]
    assert (first["state"], first["contact"], first["planned_ranks"]) == ("running", "ok", [0, 1])
    assert (second["contact"], second["error"], second["planned_ranks"]) == ("lost", "no answer", [2, 3])
    assert document["verdict"] is None
    assert status_document(run(node(0), gaps={"rank_0.out": GAPS}))["gaps"] == {
        "rank_0.out": [[0, 5], [8, 9], [10, 11], [20, 22]]
    }
