"""The engine that runs a program in the run's own interpreter: answers, ends, restarts, and nothing left."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.facts import Facts
from orchestrator.node import exercise as node_exercise
from orchestrator.phases import exercise
from orchestrator.phases.addresses import Place
from orchestrator.phases.exercise import Crew, Exercise
from orchestrator.settings import Settings
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node

TOY = """
import json, os, subprocess, sys, time
out = os.fdopen(WORDS["out"], "w")
for line in sys.stdin.buffer:
    order = json.loads(line)
    if order["op"] == "die" and WORDS["local_rank"] == order["who"]:
        print("the last words", file=sys.stderr)
        os._exit(order["code"])
    if order["op"] == "late" and WORDS["local_rank"] == 0:
        time.sleep(0.5)
    if order["op"] == "late" and WORDS["local_rank"] == 1:
        os._exit(4)
    if order["op"] == "orphan":
        subprocess.Popen(["sleep", WORDS["mark"]], pass_fds=(WORDS["out"],))
        os._exit(5)
    if order["op"] == "kill":
        os.kill(os.getpid(), 9)
    if order["op"] == "wait":
        time.sleep(order["wait_s"])
    if order["op"] == "hang":
        time.sleep(600)
    if order["op"] == "child":
        subprocess.Popen(["sleep", WORDS["mark"]])
    print("a stray print")
    answer = {"number": order["number"], "pid": os.getpid(), "rank": WORDS["local_rank"], "x": os.environ.get("X")}
    out.write(json.dumps(answer) + "\\n")
    out.flush()
    if order["op"] == "then-die":
        print("too late for its answer", file=sys.stderr)
        os._exit(6)
"""


@pytest.fixture
def mark() -> str:
    """Seconds for a sleep that no other process on this machine sleeps."""
    return f"{600 + os.getpid() % 997}.{time.monotonic_ns() % 1_000_000}"


@contextmanager
def running(mark: str, monkeypatch: pytest.MonkeyPatch, nodes: int = 1, slots: int = 2) -> Iterator[Exercise]:
    monkeypatch.setattr(exercise, "read_program", lambda _: TOY)
    listed = [
        Node(name=f"n{rank}", host="127.0.0.1", local=True, slots=slots, env=(("X", f"of {rank}"),))
        for rank in range(nodes)
    ]
    crew = Crew(
        links=[LocalLink(node) for node in listed],
        nodes=listed,
        facts=[Facts(node_rank=rank, python=sys.executable) for rank in range(nodes)],
        places=[Place("127.0.0.1", "lo")] * nodes,
        settings=Settings(),
    )
    with Exercise(crew, "toy", {"mark": mark}) as running_exercise:
        yield running_exercise


def count_marked(mark: str) -> int:
    done = subprocess.run(["pgrep", "-cf", mark.replace(".", r"\.")], capture_output=True, text=True, check=False)
    return int(done.stdout)


def wait_gone(mark: str) -> None:
    end = time.monotonic() + 15
    while count_marked(mark):
        assert time.monotonic() < end, "something is left"
        time.sleep(0.02)


def test_every_process_answers_and_has_the_environment_of_its_node(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(mark, monkeypatch, nodes=2) as engine:
        said = engine.ask({0: {"op": "say"}, 1: {"op": "say"}}, 20)
        assert [(one.node_rank, one.local_rank) for one in said] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert [one.answer["x"] for one in said if one.answer] == ["of 0", "of 0", "of 1", "of 1"]


def test_a_process_that_ends_is_told_with_its_last_words_and_restarted(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(mark, monkeypatch) as engine:
        good, bad = engine.ask({0: {"op": "die", "who": 1, "code": 3}}, 20)
        assert good.answer is not None
        assert (bad.answer, bad.trouble) == (None, "exit code 3: the last words")
        # One that has ended is not waited for.
        began = time.monotonic()
        assert engine.ask({0: {"op": "say"}}, 60)[1].trouble == "exit code 3: the last words"
        assert time.monotonic() - began < 20
        assert engine.stuck() == [0]
        engine.restart([0])
        assert all(one.answer for one in engine.ask({0: {"op": "say"}}, 20))
        assert engine.stuck() == []
        assert engine.ask({0: {"op": "kill"}}, 20)[0].trouble == "killed by signal 9"


def test_a_process_that_hangs_costs_its_time_alone_and_its_late_answer_is_dropped(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(mark, monkeypatch, slots=1) as engine:
        assert engine.ask({0: {"op": "hang"}}, 0.3)[0].trouble == "no answer in time"
        engine.restart([0])
        (said,) = engine.ask({0: {"op": "say"}}, 20)
        assert said.answer is not None
        assert said.answer["number"] == 2


def test_the_others_of_a_node_are_heard_out_when_one_of_them_ends(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(mark, monkeypatch) as engine:
        slow, dead = engine.ask({0: {"op": "late"}}, 20)
        assert slow.answer is not None
        assert dead.trouble == "exit code 4"


def test_an_end_that_was_told_late_is_not_taken_for_the_new_processes(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(mark, monkeypatch) as engine:
        said = engine.ask({0: {"op": "then-die"}}, 20)
        for one in said:
            assert one.answer is not None
            wait_ended(int(one.answer["pid"]))
        engine.restart([0])
        assert [one.trouble for one in engine.ask({0: {"op": "say"}}, 20)] == ["", ""]


def test_an_end_is_seen_although_a_child_holds_the_pipes(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(mark, monkeypatch, slots=1) as engine:
        began = time.monotonic()
        assert engine.ask({0: {"op": "orphan"}}, 30)[0].trouble == "exit code 5"
        assert time.monotonic() - began < 20
        wait_gone(mark)


def test_a_node_that_is_gone_is_a_value_also_when_its_processes_are_to_be_replaced(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(mark, monkeypatch, nodes=2, slots=1) as engine:
        said = engine.ask({0: {"op": "say"}, 1: {"op": "say"}}, 20)
        assert said[1].answer is not None
        os.kill(parent_of(int(said[1].answer["pid"])), signal.SIGKILL)
        assert "gone" in (trouble := engine.ask({1: {"op": "say"}}, 20)[0].trouble) or "ended" in trouble
        engine.restart([0, 1])
        well, gone = engine.ask({0: {"op": "say"}, 1: {"op": "say"}}, 20)
        assert well.answer is not None
        assert gone.answer is None


def test_a_python_that_is_not_there_is_told_as_the_trouble_of_its_node(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with running(mark, monkeypatch) as engine:
        assert {one.trouble for one in engine.ask({0: {"op": "say"}}, 20)} == {
            "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/python'"
        }


def test_a_process_that_takes_nothing_does_not_keep_the_end_of_the_orders_from_being_seen(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(mark, monkeypatch) as engine:
        assert all(one.answer for one in engine.ask({0: {"op": "child"}}, 20))
        engine.ask({0: {"op": "hang", "filling": "x" * 300_000}}, 0.2)
        engine.ask({0: {"op": "say", "filling": "x" * 300_000}}, 0.2)
    wait_gone(mark)


def test_a_long_question_is_not_taken_for_silence(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exercise, "IDLE_S", 0.2)
    with running(mark, monkeypatch, slots=1) as engine:
        assert engine.ask({0: {"op": "wait", "wait_s": 3}}, 20)[0].trouble == ""


def test_the_end_leaves_no_process_and_no_child_of_one(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(mark, monkeypatch) as engine:
        assert all(one.answer for one in engine.ask({0: {"op": "child"}}, 20))
        assert count_marked(mark) >= 2
    wait_gone(mark)


def test_an_engine_that_is_killed_takes_its_processes_along(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(mark, monkeypatch) as engine:
        said = engine.ask({0: {"op": "say"}}, 20)
        pids = [int(one.answer["pid"]) for one in said if one.answer]
        os.kill(parent_of(pids[0]), signal.SIGKILL)
        for pid in pids:
            wait_ended(pid)
        assert engine.ask({0: {"op": "say"}}, 5)[0].answer is None


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def wait_ended(pid: int) -> None:
    end = time.monotonic() + 10
    while state_of(pid) != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


@pytest.mark.parametrize("name", ["collectives", "load"])
def test_the_programs_need_nothing_newer_than_python_3_9(name: str) -> None:
    ast.parse(exercise.read_program(name), name, feature_version=(3, 9))


def test_an_engine_that_hangs_is_given_up_and_not_waited_for_again(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exercise, "RESTART_S", 0.5)
    with running(mark, monkeypatch, slots=1) as engine:
        (said,) = engine.ask({0: {"op": "say"}}, 20)
        assert said.answer is not None
        parent = int(Path(f"/proc/{said.answer['pid']}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(parent, signal.SIGSTOP)
        try:
            assert engine.ask({0: {"op": "say"}}, 0.3)[0].trouble == "no answer in time"
            engine.restart([0])
            began = time.monotonic()
            assert "does not answer" in engine.ask({0: {"op": "say"}}, 60)[0].trouble
            engine.restart([0])
            assert "does not answer" in engine.ask({0: {"op": "say"}}, 60)[0].trouble
            assert time.monotonic() - began < 10
        finally:
            os.kill(parent, signal.SIGCONT)


class Told:
    """Stands for the wire: keeps what would be sent."""

    def __init__(self) -> None:
        self.headers: list[dict[str, Any]] = []

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        del body
        self.headers.append(header)


def test_what_was_said_just_before_an_end_is_heard_first() -> None:
    told = Told()
    source = 'import json, os; os.write(WORDS["out"], b\'{"number": 1}\\n\'); os._exit(6)'
    request = {"python": sys.executable, "source": source, "processes": 1, "env": {}, "cleared": []}
    engine = node_exercise.Engine(request, cast("Any", told))
    engine.start()
    try:
        wait_ended(engine.workers[0].process.pid)
        # As when it says and ends between a look at the pipes and one at the processes.
        engine.notice_ends(set())
    finally:
        engine.stop()
    assert [header.get("said") for header in told.headers] == [{"number": 1}, None]
    assert told.headers[1]["ended"] == 6
