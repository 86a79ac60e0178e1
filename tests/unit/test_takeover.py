"""A run that is taken over is judged by what its nodes tell, not by how long it has been alone."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from runs import START, Story, build_plan

from orchestrator.diagnosis.decider import Decider
from orchestrator.diagnosis.events import Event
from orchestrator.output.events import EventLog
from orchestrator.output.plan_text import plan_document
from orchestrator.phases.loggaps import add_gap
from orchestrator.phases.takeover import note_gaps, read_events
from orchestrator.phases.watch import Watch, watch
from orchestrator.plan.paths import ExperimentPaths


class SlowReader(threading.Thread):
    """Tells what its node has been through, a while after it was asked."""

    def __init__(self, node: Any, events: queue.SimpleQueue[Event], told: list[Event]) -> None:
        super().__init__(daemon=True)
        self.node, self._events, self._told = node, events, told
        self.orders: list[Any] = []

    def order(self, order: Any) -> None:
        self.orders.append(order)

    def give_up(self) -> None:
        pass

    def run(self) -> None:
        time.sleep(0.5)  # the time of a login
        for event in self._told:
            self._events.put(event)


def followed(age_s: float, limit_s: float | None, *, join_limit_s: float = 180.0) -> tuple[Decider, list[SlowReader]]:
    """Take over a run of two nodes that has ended well meanwhile; it began so long ago."""
    plan = build_plan(1, 1)
    now = time.time()
    began = now - age_s
    decider = Decider(plan, started=began, join_limit_s=join_limit_s, begun=now)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    readers = []
    for node in plan.nodes:
        rank = node.first_rank
        own = {"rank": rank, "local_rank": 0, "world_size": 2, "code": 0, "signal": None}
        told = [
            Event(kind="agent", time=began, node_rank=node.node_rank, data={"pid": 1}),
            Event(kind="rank", time=began, node_rank=node.node_rank, data=own),
            Event(kind="rank_exit", time=began + 50, node_rank=node.node_rank, data={**own, "after_stop": False}),
            Event(kind="agent_exit", time=began + 50, node_rank=node.node_rank, data={"code": 0, "signal": None}),
            Event(kind="final", time=began + 50, node_rank=node.node_rank, data={"state": "succeeded"}),
        ]
        readers.append(SlowReader(node, events, told))
    for reader in readers:
        reader.start()
    watching: Any = readers
    watch(
        Watch(
            decider=decider,
            readers=watching,
            events=events,
            note=lambda _: None,
            say=lambda _: None,
            first_words=lambda: "",
            on_stage=lambda _: None,
            on_trouble=lambda: None,
            time_limit_s=limit_s,
        )
    )
    return decider, readers


def test_an_old_run_is_not_taken_for_one_whose_ranks_never_appeared() -> None:
    decider, readers = followed(age_s=600.0, limit_s=None)
    assert decider.history.stop_cause is None
    assert [reader.orders for reader in readers] == [[], []]


def test_a_run_that_ended_in_time_has_not_run_out_of_it_while_nobody_looked() -> None:
    decider, _ = followed(age_s=150.0, limit_s=0.0)
    assert decider.history.stop_cause is None


def test_a_new_controller_waits_for_ranks_from_its_own_beginning() -> None:
    story = Story(1, 1)
    old = Decider(story.plan, started=START, join_limit_s=180.0, begun=START + 1000)
    assert old.take(Event(kind="tick", time=START + 1001)) == []
    assert old.take(Event(kind="tick", time=START + 1000 + 211))[0].stop == (0, 1)


def test_a_gap_that_its_finder_did_not_live_to_tell_is_told_by_its_successor(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    paths.logs.mkdir()
    log = EventLog(paths.events_jsonl)
    for start, end in ((0, 5), (5, 9), (20, 30)):
        add_gap(paths.gaps_jsonl, "rank_0001.out", (start, end))
    log.record("gap", at=1.0, node_rank=1, file="0.out", rank=1, **{"from": 0, "to": 5})
    desk: Any = SimpleNamespace(noted=set(), log=log)
    saved: Any = SimpleNamespace(paths=paths, document={"plan": plan_document(build_plan(1, 1))})
    for _ in range(2):
        note_gaps(desk, saved)
    log.close()
    told = [(one["node_rank"], one["file"], one["rank"], one["from"], one["to"]) for one in read_events(paths)]
    assert told == [(1, "0.out", 1, 0, 5), (1, "0.out", 1, 5, 9), (1, "0.out", 1, 20, 30)]
