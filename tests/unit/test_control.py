"""One controller a run: its lock, its socket, and what it answers."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import Story

from orchestrator.diagnosis.events import Event
from orchestrator.phases.control import ask_controller, has_controller, take_lock
from orchestrator.phases.controller import Controller
from orchestrator.phases.known_runs import KnownRun
from orchestrator.phases.signals import Signals


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HOME so deep that no socket's name would fit."""
    deep = tmp_path / ("x" * 120)
    (deep / ".aorta/launches").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(deep))
    return deep


def known(run_id: str = "run") -> KnownRun:
    return KnownRun(run_id=run_id, entry=Path("e"), experiment="e", live=True, nodes=(), ssh={})


def controller(run_id: str = "run") -> Controller:
    record: Any = SimpleNamespace(document={"run_id": run_id, "state": "running"})
    return Controller(record, Signals())


def test_there_is_one_controller_and_it_can_be_asked(home: Path) -> None:
    assert not has_controller("run")
    first, second = controller(), controller()
    assert first.open()
    assert not second.open()
    assert has_controller("run")
    answer = ask_controller(known(), {"op": "hello"}, 5)
    assert answer == {"run_id": "run", "pid": os.getpid(), "mode": "foreground", "state": "running"}
    assert ask_controller(known("other"), {"op": "hello"}, 5) is None
    assert ask_controller(known(), {"nonsense": 1}, 5) is None, "what is no request gets no answer"
    first.close()
    assert not has_controller("run")
    assert ask_controller(known(), {"op": "hello"}, 5) is None
    assert second.open(), "the next one takes over, whatever the last one left"
    second.close()
    assert {path.name for path in (home / ".aorta/launches").iterdir()} == {"run.lock"}


def test_the_lock_of_a_dead_process_holds_nobody_up(home: Path) -> None:
    pid = os.fork()
    if pid == 0:
        take_lock("run")
        os._exit(0)
    os.waitpid(pid, 0)
    assert (home / ".aorta/launches/run.lock").exists()
    assert not has_controller("run")


def test_a_stop_becomes_an_event_and_is_answered_with_every_nodes_last_word(home: Path) -> None:
    del home
    story = Story(1, 1)
    story.all_run()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    one = controller()
    assert one.open()
    one.follow(events, (), story.decider)
    answers: list[Any] = []
    asker = threading.Thread(target=lambda: answers.append(ask_controller(known(), {"op": "stop", "grace_s": 2}, 20)))
    asker.start()
    event = events.get(timeout=10)
    assert (event.kind, event.data) == ("kill", {"grace_s": 2.0})
    orders = story.decider.take(event)
    assert [(order.stop, order.grace_s) for order in orders] == [((0, 1), 2.0)]
    story.node_ends(0, state="killed", after_stop=True, reason="kill")
    one.note_end()
    asker.join(10)
    assert answers[0]["over"]
    assert [node["final"] and node["final"]["state"] for node in answers[0]["nodes"]] == ["killed", None]
    one.close()
