"""A run that is taken over is judged by what its nodes tell, not by how long it has been alone."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from runs import START, Story, build_plan

from orchestrator.diagnosis.decider import Decider
from orchestrator.diagnosis.events import Event
from orchestrator.phases.watch import Watch, watch


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
