from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_node import SLEEP, LiveNode
from ranks_alone import STUCK, RankRoom, wait_for

from orchestrator.node import evidence, look
from orchestrator.node.stacks import state_of

MARKED = STUCK.replace('print("here", flush=True)', 'open("here", "w").close()')


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RankRoom]:
    with RankRoom(tmp_path) as room:
        monkeypatch.chdir(room.folder)
        yield room


def test_a_stack_is_written_before_term_comes(room: RankRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    # Pending signals are taken in the order of their numbers: TERM would come first, and end the rank.
    monkeypatch.setattr(look, "STACKS_S", 30.0)
    processes = [room.start(STUCK, rank=rank) for rank in range(3)]
    for rank, process in enumerate(processes):
        room.wait_armed(rank)
        # Armed it is before its program begins.
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
    began = time.monotonic()
    look.wait_for_stacks(look.take(room.events, "failure"))
    took_s = time.monotonic() - began
    for process in processes:
        process.terminate()
        process.wait()
    (taken,) = look.read_looks(str(room.folder))
    assert all("wait_for_ever" in rank["text"] for rank in taken["ranks"])
    assert took_s < 10, "no longer than it takes"


def test_a_rank_that_cannot_answer_is_not_waited_for_long(room: RankRoom) -> None:
    process = room.start(STUCK)
    room.wait_armed()
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: state_of(process.pid) == "T")
    began = time.monotonic()
    asked = look.take(room.events, "failure")
    assert asked == {0: 0}
    look.wait_for_stacks(asked)
    assert time.monotonic() - began < 3 * look.STACKS_S
    (taken,) = look.read_looks(".")
    assert (taken["ranks"][0]["state"], taken["ranks"][0]["text"]) == ("T", "")


def test_without_the_hook_nothing_is_waited_for(room: RankRoom) -> None:
    room.start(SLEEP, hook=False)
    assert look.take(room.events, "failure") == {}
    began = time.monotonic()
    look.wait_for_stacks({})
    assert time.monotonic() - began < look.STACKS_S


def test_whoever_wants_a_stop_is_not_told_why(room: RankRoom) -> None:
    room.start(SLEEP, hook=False)
    for reason in ("interrupt", "terminate", "kill", "elsewhere"):
        assert look.take(room.events, reason) == {}
    assert look.take([], "failure") == {}
    assert look.read_looks(".") == []


def test_what_cannot_be_read_is_no_look(room: RankRoom) -> None:
    path = room.folder / "diagnosis" / look.FILE
    path.write_text("[{", "utf-8")
    assert look.read_looks(".") == []


def test_a_stop_for_a_failure_elsewhere_is_looked_at_and_told(tmp_path: Path) -> None:
    with LiveNode(tmp_path, SLEEP, MARKED, rank_hook=True) as node:
        node.send("go")
        node.wait(lambda: len(node.ranks()) == 2)
        node.wait((tmp_path / "here").exists)
        # As the launch host does it: the stop comes right behind the question.
        node.send("evidence", id="1")
        node.send("stop", grace_s=2.0, reason="failure", state="stopped")
        (taken,) = node.answer("1")["looks"]
        node.event("final")
    assert taken["reason"] == "failure"
    assert [rank["rank"] for rank in taken["ranks"]] == [0, 1]
    assert {rank["state"] for rank in taken["ranks"]} == {"S"}
    assert "wait_for_ever" in taken["ranks"][1]["text"]


def test_when_a_rank_fails_the_others_are_looked_at_before_their_agent_ends_them(tmp_path: Path) -> None:
    fail = "import os, time\nwhile not os.path.exists('now'): time.sleep(0.01)\nraise SystemExit(3)"
    with LiveNode(tmp_path, fail, MARKED, rank_hook=True) as node:
        node.send("go")
        node.wait(lambda: len(node.ranks()) == 2)
        node.wait((tmp_path / "here").exists)
        (tmp_path / "now").touch()
        assert node.event("rank_exit")["code"] == 3
        # The stop that follows tells nothing more: what the ranks do by then, they do because they end.
        node.send("stop", grace_s=2.0, reason="failure", state="stopped")
        node.event("final")
        (taken,) = look.read_looks(str(node.folder))
    assert (taken["reason"], [rank["rank"] for rank in taken["ranks"]]) == ("rank 0 failed", [1])
    assert "wait_for_ever" in taken["ranks"][0]["text"]


def test_a_kill_by_the_user_is_not_looked_at(tmp_path: Path) -> None:
    with LiveNode(tmp_path, SLEEP) as node:
        node.send("go")
        node.event("rank")
        node.send("stop", grace_s=2.0, reason="kill", state="killed")
        assert node.event("final")["state"] == "killed"
    assert not (node.folder / "diagnosis" / look.FILE).exists()


def test_a_look_that_is_about_to_be_taken_is_waited_for(room: RankRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    room.start(SLEEP, hook=False)
    folder = str(room.folder)
    began = time.monotonic()
    assert evidence.wait_for_looks(folder, began + 10) == []
    assert evidence.LOOK_S <= time.monotonic() - began < 3 * evidence.LOOK_S
    # Nobody takes one whose supervisor is gone.
    status = json.loads(Path("status.json").read_text("utf-8"))
    Path("status.json").write_text(json.dumps({**status, "supervisor": {}}), "utf-8")
    monkeypatch.setattr(evidence, "LOOK_S", 600.0)
    began = time.monotonic()
    assert evidence.wait_for_looks(folder, began + 600) == []
    assert time.monotonic() - began < 5
