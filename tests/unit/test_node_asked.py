from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from live_node import SLEEP, LiveNode

from orchestrator.node import asked, processes
from orchestrator.node.asked import Questions

FAILED = {"ev": "rank_exit", "rank": 0, "code": 1, "signal": None}


def wait_answers(questions: Questions, count: int, deadline_s: float = 20.0) -> list[tuple[dict[str, Any], Any]]:
    found: list[tuple[dict[str, Any], Any]] = []
    end = time.monotonic() + deadline_s
    while len(found) < count:
        found += [(header, json.loads(body)) for header, body in questions.answers()]
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def test_an_answer_carries_the_name_of_its_question(tmp_path: Path) -> None:
    questions = Questions(str(tmp_path))
    assert questions.take({"op": "stacks", "id": "7"})
    assert questions.waiting
    ((header, body),) = wait_answers(questions, 1)
    assert header == {"t": "answer", "op": "stacks", "id": "7"}
    assert body["ranks"] == []
    assert not questions.waiting


def test_what_is_no_question_is_left_to_the_pump(tmp_path: Path) -> None:
    questions = Questions(str(tmp_path))
    assert not questions.take({"op": "stop", "grace_s": 1})
    assert not questions.take({})
    assert list(questions.answers()) == []


def test_one_that_hangs_holds_up_no_other_and_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setitem(asked.QUESTIONS, "ras", ("ask", 2.0))
        questions = Questions(str(tmp_path))
        before = set(processes.children(os.getpid()))
        assert questions.take({"op": "ras", "id": "1"})
        (pid,) = set(processes.children(os.getpid())) - before
        assert questions.take({"op": "stacks", "id": "2"})
        first, second = wait_answers(questions, 2)
    assert (first[0]["op"], second[0]["op"]) == ("stacks", "ras")
    assert second[1] == {"error": "no answer within 2 s"}
    left = processes.read_process(pid)
    assert left is None or left.state == "Z"


def waits(questions: Questions) -> bool:
    return questions.waiting


@pytest.mark.parametrize("changed", [{"ev": "rank"}, {"code": 0}, {"after_stop": True}, {"code": None}])
def test_what_is_no_failure_is_not_asked_about(tmp_path: Path, changed: dict[str, Any]) -> None:
    questions = Questions(str(tmp_path))
    questions.note({**FAILED, **changed})
    assert not waits(questions)


def test_who_hears_of_a_failure_will_ask_once(tmp_path: Path) -> None:
    # A node of one rank is over 0.3 s after that has failed; over a slow link the question comes later than that.
    questions = Questions(str(tmp_path))
    questions.note(FAILED)
    assert waits(questions)
    questions.take({"op": "evidence", "id": "1"})
    wait_answers(questions, 1)
    assert not waits(questions)
    questions.note({"ev": "agent_exit", "code": None, "signal": signal.SIGKILL})
    assert not waits(questions)


def test_a_question_that_never_comes_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "EXPECTED_S", 0.05)
    questions = Questions(str(tmp_path))
    questions.note(FAILED)
    end = time.monotonic() + 10
    while waits(questions):
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_pump_ends_behind_the_last_answer(tmp_path: Path) -> None:
    with LiveNode(tmp_path, SLEEP) as node:
        node.send("go")
        node.event("rank")
        node.send("activity", id="1", window_s=1.0)
        node.send("stop", grace_s=1.0, reason="kill", state="killed")
        assert "ranks" in node.answer("1")
        node.wait(lambda: node.pump_ended)
    kinds = [str(frame.header.get("ev") or frame.header["t"]) for frame in node.frames]
    assert kinds.index("final") < kinds.index("answer") < kinds.index("end")


def test_a_node_that_was_over_before_it_was_asked_answers_all_the_same(tmp_path: Path) -> None:
    with LiveNode(tmp_path, "raise SystemExit(7)") as node:
        node.send("go")
        assert node.event("final")["state"] == "failed"
        # As long as a question takes from far away.
        end = time.monotonic() + 0.5
        node.wait(lambda: time.monotonic() > end)
        assert not node.pump_ended
        node.send("evidence", id="1")
        assert node.answer("1")["memory"]["total_mib"] > 0
        node.wait(lambda: node.pump_ended)
    assert node.frames[-1].header["t"] == "end"
