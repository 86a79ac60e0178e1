"""Follows a run to its end: one queue of events, one decider, and nobody else who gives orders."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from orchestrator.diagnosis.decider import Decider
from orchestrator.diagnosis.events import Event, Order
from orchestrator.light_dataclass import dataclass
from orchestrator.node import clock
from orchestrator.phases.reader import NodeReader

TICK_S = 0.2
TOLD_S = 2.0
"""What a node has been through is told within this time after its first word."""
FIRST_WORD_S = 0.4
"""A rank's last words are on their way when its end is known: this long we wait before we quote them."""

Stage = Literal["started", "met", "running", "stopping"]
END_STATES = {
    "interrupt": "killed",
    "terminate": "killed",
    "kill": "killed",
    "elsewhere": "killed",
    "time limit": "timed out",
}
"""How a node ends that is stopped for a cause; for another one it is just stopped."""

ASKED_FOR = ("interrupt", "terminate", "kill", "elsewhere")
"""Stops that somebody wanted: there is nothing to explain."""


@dataclass
class Watch:
    """What the loop works with."""

    decider: Decider
    readers: Sequence[NodeReader]
    events: queue.SimpleQueue[Event]
    note: Callable[[Event], None]
    say: Callable[[str], None]
    first_words: Callable[[], str]
    """Says what broke first, once the decider has stopped the run for a failure."""
    on_trouble: Callable[[], None]
    """Called before anybody is stopped for a reason that is to be explained."""
    on_stage: Callable[[Stage], None]
    """Called once for each: every agent runs; the agents have met, or never will; all ranks run; a stop was ordered."""
    time_limit_s: float | None
    stages: set[Stage] = field(default_factory=set)


def watch(watched: Watch) -> bool:
    """Run the loop until every node has said its last word and every log byte is here; False when told to leave."""
    limit = None if watched.time_limit_s is None else time.monotonic() + watched.time_limit_s
    history = watched.decider.history
    heard: float | None = None
    user_stops = 0
    quoted = False
    while not (watched.decider.over and not any(reader.is_alive() for reader in watched.readers)):
        event = _next(watched.events)
        if event.kind == "leave":
            return False
        if event.kind in ("interrupt", "terminate"):
            user_stops += 1
            _let_go(watched, user_stops)
        heard = heard or (time.monotonic() if len(history.heard) == len(history.plan.nodes) else None)
        if limit is not None and _is_due(limit, heard) and not watched.decider.over:
            limit = None
            _do(watched, Event(kind="time_limit", time=clock.now()))
        _do(watched, event)
        if event.kind == "suspect" and user_stops > 1:
            _let_go(watched, user_stops)
        quoted = quoted or _quote(watched, event.time)
        _tell_stages(watched)
    if not quoted and watched.decider.history.stop_cause == "failure":
        watched.say(watched.first_words())
    return True


def _is_due(limit: float, heard: float | None) -> bool:
    """Say whether the time limit is over; a run that is taken over may have ended before it, and says so first."""
    now = time.monotonic()
    return heard is not None and now > limit and now > heard + TOLD_S


def _tell_stages(watched: Watch) -> None:
    history = watched.decider.history
    reached: dict[Stage, bool] = {
        "started": len(history.agents) == len(history.plan.nodes),
        "met": history.all_seen or bool(history.agent_exits),
        "running": history.all_seen,
        "stopping": history.stop_cause is not None,
    }
    for stage, there in reached.items():
        if there and stage not in watched.stages:
            watched.stages.add(stage)
            watched.on_stage(stage)


def _next(events: queue.SimpleQueue[Event]) -> Event:
    try:
        return events.get(timeout=TICK_S)
    except queue.Empty:
        return Event(kind="tick", time=clock.now())


def _do(watched: Watch, event: Event) -> None:
    if event.kind != "tick":
        watched.note(event)
    history = watched.decider.history
    stopped_before = history.stop_cause
    orders = watched.decider.take(event)
    if history.stop_cause is not None and stopped_before is None and event.kind != "stop":
        # On the disk before anybody is stopped: whoever takes the run over has to know why it was.
        grace_s = max((order.grace_s for order in orders if order.stop), default=0.0)
        data = {"cause": history.stop_cause, "detail": history.stop_detail, "grace_s": grace_s}
        node_rank = -1 if history.stop_node is None else history.stop_node
        watched.note(Event(kind="stop", time=history.stop_time or event.time, node_rank=node_rank, data=data))
        if history.stop_cause not in ASKED_FOR:
            watched.on_trouble()
    for order in orders:
        _obey(watched, order)


def build_stop(cause: str, grace_s: float) -> Mapping[str, Any]:
    """Build the order that stops a node."""
    return {"op": "stop", "grace_s": grace_s, "reason": cause, "state": END_STATES.get(cause, "stopped")}


def _obey(watched: Watch, order: Order) -> None:
    if order.say:
        watched.say(order.say)
    wire = build_stop(watched.decider.history.stop_cause or "", order.grace_s)
    for node_rank in order.stop:
        watched.readers[node_rank].order(wire)


def _quote(watched: Watch, now: float) -> bool:
    history = watched.decider.history
    if history.stop_cause != "failure" or history.stop_time is None:
        return False
    # The node's clock may be off by more than we measured: our own is the one that counts the wait.
    if now - history.stop_time < FIRST_WORD_S:
        return False
    words = watched.first_words()
    if words:
        watched.say(words)
    return True


def _let_go(watched: Watch, user_stops: int) -> None:
    """A second Ctrl-C does not wait for nodes that are silent; a run that is over does not wait for its logs."""
    for reader in watched.readers:
        silent = reader.node.node_rank in watched.decider.history.suspect
        if (user_stops >= 2 and silent) or watched.decider.over:  # noqa: PLR2004 - the second Ctrl-C
            reader.give_up()
