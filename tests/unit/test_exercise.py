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

import pytest

from orchestrator.facts import Facts
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
    if order["op"] == "kill":
        os.kill(os.getpid(), 9)
    if order["op"] == "hang":
        time.sleep(600)
    if order["op"] == "child":
        subprocess.Popen(["sleep", WORDS["mark"]])
    print("a stray print")
    answer = {"number": order["number"], "pid": os.getpid(), "rank": WORDS["local_rank"], "x": os.environ.get("X")}
    out.write(json.dumps(answer) + "\\n")
    out.flush()
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
        settings=Settings.model_validate({}),
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


def test_the_end_leaves_no_process_and_no_child_of_one(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(mark, monkeypatch) as engine:
        assert all(one.answer for one in engine.ask({0: {"op": "child"}}, 20))
        assert count_marked(mark) >= 2
    wait_gone(mark)


def test_an_engine_that_is_killed_takes_its_processes_along(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(mark, monkeypatch) as engine:
        said = engine.ask({0: {"op": "say"}}, 20)
        pids = [int(one.answer["pid"]) for one in said if one.answer]
        os.kill(int(Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
        end = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() and "Z" not in state_of(pid) for pid in pids):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert engine.ask({0: {"op": "say"}}, 5)[0].answer is None


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


@pytest.mark.parametrize("name", ["collectives"])
def test_the_programs_need_nothing_newer_than_python_3_9(name: str) -> None:
    ast.parse(exercise.read_program(name), name, feature_version=(3, 9))
