from __future__ import annotations

import errno
import os
import queue
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from runs import build_plan

from orchestrator.diagnosis.events import Event
from orchestrator.errors import LinkLostError
from orchestrator.phases.contact import Contact
from orchestrator.phases.logstore import LogStore
from orchestrator.phases.reader import NodeReader
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.transport import Channel, Frame, Link, RsyncTarget
from orchestrator.values import Node, NodePlan


class FakeChannel:
    """Says its frames, then ends."""

    def __init__(self, *headers: Mapping[str, Any]) -> None:
        self.frames = [Frame(header) for header in headers]
        self.orders: list[Mapping[str, Any]] = []

    def read(self, timeout_s: float | None = None) -> Frame | None:
        del timeout_s
        return self.frames.pop(0) if self.frames else None

    def send(self, order: Mapping[str, Any]) -> None:
        self.orders.append(order)

    def close(self) -> None:
        self.frames.clear()


class FakeLink:
    pythons: tuple[str, ...] = ()
    round_trip_s = 0.0

    def __init__(self, channel: FakeChannel) -> None:
        self.node = Node(name="a", host="a")
        self.channel = channel

    def prepare(self) -> None:
        pass

    def open(self, program: str, request: Mapping[str, Any]) -> Channel:
        del program, request
        return self.channel

    def call(self, program: str, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        raise NotImplementedError

    def rsync_target(self) -> RsyncTarget:
        raise NotImplementedError

    def close(self) -> None:
        pass


def follow(tmp_path: Path, channel: FakeChannel, reopen: Callable[[NodePlan], Link]) -> list[Event]:
    """Follow one node to the end of its thread; give what it told."""
    plan = build_plan(1)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    reader = NodeReader(
        plan=plan,
        node=plan.nodes[0],
        link=FakeLink(channel),
        channel=channel,
        store=LogStore(plan.nodes[0], ExperimentPaths(tmp_path), lambda *_: None),
        events=events,
        reopen=reopen,
        lost_after_s=0.6,
        clock_offset_s=0.0,
        contact=Contact(range(1)),
    )
    reader.start()
    reader.join(20)
    assert not reader.is_alive()
    return [events.get() for _ in range(events.qsize())]


def test_a_node_that_answers_and_knows_nothing_of_the_run_is_lost(tmp_path: Path) -> None:
    def reopen(node: NodePlan) -> Link:
        del node
        return FakeLink(FakeChannel({"error": "no run in /r/0"}))

    events = follow(tmp_path, FakeChannel({"t": "beat"}), reopen)
    assert events[-1].kind == "lost"
    assert "no run in /r/0" in events[-1].data["why"]


def test_a_broken_link_that_comes_back_is_followed_to_the_end(tmp_path: Path) -> None:
    tries = iter((False, True))

    def reopen(node: NodePlan) -> Link:
        del node
        if not next(tries):
            raise LinkLostError(what="no route", where="a")
        return FakeLink(FakeChannel({"t": "event", "ev": "final", "state": "succeeded"}, {"t": "end"}))

    events = follow(tmp_path, FakeChannel({"t": "beat"}), reopen)
    assert [event.kind for event in events] == ["suspect", "back", "final"]


def test_a_bug_while_following_counts_as_a_loss_and_is_no_endless_wait(tmp_path: Path) -> None:
    def reopen(node: NodePlan) -> Link:
        raise ZeroDivisionError(node.node.name)

    events = follow(tmp_path, FakeChannel({"t": "beat"}), reopen)
    assert [event.kind for event in events] == ["suspect", "lost"]
    assert "ZeroDivisionError" in events[-1].data["why"]


def refuse(node: NodePlan) -> Link:
    raise LinkLostError(what="no route", where=node.node.name)


def test_a_gap_is_kept_and_told_once(tmp_path: Path) -> None:
    gap = {"t": "gap", "f": "0.err", "from": 0, "to": 4096}
    events = follow(tmp_path, FakeChannel(gap, gap, {"t": "end"}), refuse)
    assert [(event.kind, dict(event.data)) for event in events] == [
        ("gap", {"file": "0.err", "rank": 0, "from": 0, "to": 4096})
    ]
    assert ExperimentPaths(tmp_path).rank_err(0).stat().st_size == 4096


def test_a_node_that_ended_while_the_disk_was_full_here_is_asked_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again = FakeChannel(), FakeChannel()
    write = os.pwrite

    def full(handle: int, data: bytes, offset: int) -> int:
        # The node's last word comes when there is space again.
        if len(first.frames) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data, offset)

    first.frames = [Frame({"t": "log", "f": "0.out", "o": 0}, b"one\n"), Frame({"t": "end"})]
    again.frames = [Frame({"t": "log", "f": "0.out", "o": 0}, b"one\n"), Frame({"t": "end"})]
    monkeypatch.setattr(FakeLink, "open", lambda *_: again)
    monkeypatch.setattr(os, "pwrite", full)
    events = follow(tmp_path, first, refuse)
    assert [event.kind for event in events] == ["store_error", "store_back"]
    assert ExperimentPaths(tmp_path).rank_out(0).read_bytes() == b"one\n"
