from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from orchestrator.diagnosis.hang.stacks_node import NodeLook, build_node_look, list_stacks, render_look
from orchestrator.diagnosis.hang.words import find_moved
from orchestrator.output.stacks_text import fold_ranks, render_stacks, stacks_document
from orchestrator.phases.stacks_tool import find_tool, list_lacking

REDUCE = """Process 7: python train.py
Python v3.12.1

Thread 7 (idle): "MainThread"
    all_reduce (/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:3)
    train (/home/me/.aorta/code/p/train.py:41)
    <module> (/home/me/.aorta/code/p/train.py:50)
"""
READ = REDUCE.replace("    all_reduce (/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:3)\n",
                      "    fetch (/home/me/.aorta/code/p/load/data.py:88)\n")  # fmt: skip


def rank(number: int, text: str, **more: Any) -> dict[str, Any]:
    known = {"rank": number, "local_rank": number % 2, "pid": 70 + number, "state": "S", "wchan": "futex_do_wait"}
    return {**known, "how": "py-spy", "text": text, "why": "", **more}


def build_nodes() -> tuple[NodeLook, ...]:
    answers: list[dict[str, Any]] = [
        {"ranks": [rank(0, REDUCE), rank(1, REDUCE)]},
        {"ranks": [rank(2, REDUCE), rank(3, READ, state="D", wchan="nfs_wait_bit.part.0")]},
        {"ranks": [rank(4, "", how="proc", why="there is no py-spy", wchan="")]},
        {"error": "no answer"},
    ]
    return tuple(
        build_node_look(answer, node_rank=n, node=f"n{n}", address=f"10.0.0.{n}", workdir="/home/me/.aorta/code/p")
        for n, answer in enumerate(answers)
    )


def test_equal_stacks_are_folded_and_what_is_missing_is_said() -> None:
    page = render_stacks("run-1", build_nodes()).plain
    assert (
        page
        == """\
run-1

ranks 0-2  wait in all_reduce (train.py:41)
    train.py:41 in train
    train.py:50 in <module>

rank 3  in fetch (load/data.py:88), state D  state D, wchan nfs_wait_bit
    node 1 n1 10.0.0.1, local rank 1, pid 73
    load/data.py:88 in fetch
    train.py:41 in train
    train.py:50 in <module>

rank 4  in state S
    node 2 n2 10.0.0.2, local rank 0, pid 74

node 3 n3: no answer

rank 4: no more than that: there is no py-spy"""
    )
    assert "distributed_c10d.py:3 in all_reduce" in render_stacks("r", build_nodes(), every_frame=True).plain


def test_the_document_holds_every_frame() -> None:
    document = stacks_document("run-1", build_nodes())
    assert [(group["ranks"], group["doing"], group["kind"]) for group in document["groups"]] == [
        ([0, 1, 2], "all_reduce", "collective"),
        ([3], "fetch", "disk"),
        ([4], "state S", "unknown"),
    ]
    third = document["ranks"][3]
    assert (third["node"], third["pid"], third["state"], third["wchan"]) == ("n1", 73, "D", "nfs_wait_bit")
    assert third["frames"][0] == {"function": "fetch", "file": "load/data.py", "line": 88}
    assert document["unasked"] == [{"node": "n3", "error": "no answer"}]


def test_the_file_of_a_rank_can_be_read_again() -> None:
    node = build_nodes()[1]
    again = build_node_look(
        {"ranks": [rank(3, render_look(node.ranks[1], "n1"), state="", wchan="")]}, node_rank=1, node="n1"
    )
    assert list_stacks([again])[0] == list_stacks([node])[1]


def test_a_stack_that_moves_is_told_from_one_that_stands() -> None:
    before = list_stacks(build_nodes())
    other = build_node_look({"ranks": [rank(3, REDUCE)]}, node_rank=1, node="n1", workdir="/home/me/.aorta/code/p")
    assert find_moved(before, before) == ()
    assert find_moved(before, list_stacks([other])) == (3,)


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([2, 0, 1, 5, 7, 8], "ranks 0-2, 5, 7-8"), ([0, 2], "ranks 0, 2")]
)
def test_ranks_in_short(ranks: list[int], text: str) -> None:
    assert fold_ranks(ranks) == text


def test_nonsense_from_a_node_is_left_out() -> None:
    look = build_node_look({"ranks": [{"rank": "x"}, 3, {"rank": 1}]}, node_rank=0, node="n")
    assert [(one.rank, one.stack) for one in look.ranks] == [(1, None)]


def test_py_spy_is_brought_where_it_lacks_and_would_run(tmp_path: Path) -> None:
    poor = {"py_spy": "", "machine": platform.machine(), "ranks": [{"how": "proc"}]}
    answers: dict[int, dict[str, Any]] = {
        0: poor,
        1: {**poor, "py_spy": "/usr/bin/py-spy"},
        2: {**poor, "machine": "other"},
        3: {**poor, "ranks": [{"how": "signal"}]},
        4: {"error": "no answer"},
    }
    assert list_lacking(answers) == [0]
    script, program = tmp_path / "a" / "py-spy", tmp_path / "b" / "py-spy"
    for path, data in ((script, b"#!/bin/sh\n"), (program, b"\x7fELF....")):
        path.parent.mkdir()
        path.write_bytes(data)
    (tmp_path / "link").symlink_to(program)
    assert find_tool(script) is None, "a wrapper would not run there"
    assert find_tool(tmp_path / "nothing") is None
    assert find_tool(program) == find_tool(tmp_path / "link") == program
