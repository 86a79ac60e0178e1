"""Follows a run to its end: one queue of events, one decider, and nobody else who gives orders."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.diagnosis.decider import Decider
from orchestrator.diagnosis.events import Event, Order
from orchestrator.phases.reader import NodeReader

TICK_S = 0.2
FIRST_WORD_S = 0.4
"""A rank's last words are on their way when its end is known: this long we wait before we quote them."""


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
    on_running: Callable[[], None]
    """Called once: the agents have met, or never will."""
    time_limit_s: float | None


def watch(watched: Watch) -> None:
    """Run the loop until every node has said its last word and every log byte is here."""
    limit = None if watched.time_limit_s is None else time.monotonic() + watched.time_limit_s
    user_stops = 0
    quoted = met = False
    while not (watched.decider.over and not any(reader.is_alive() for reader in watched.readers)):
        event = _next(watched.events)
        if event.kind in ("interrupt", "terminate"):
            user_stops += 1
            _let_go(watched, user_stops)
        if limit is not None and time.monotonic() > limit:
            limit = None
            _do(watched, Event(kind="time_limit", time=time.time()))
        _do(watched, event)
        if event.kind == "suspect" and user_stops > 1:
            _let_go(watched, user_stops)
        quoted = quoted or _quote(watched, event.time)
        if not met and (watched.decider.history.all_seen or watched.decider.history.agent_exits):
            met = True
            watched.on_running()
    if not quoted and watched.decider.history.stop_cause == "failure":
        watched.say(watched.first_words())


def _next(events: queue.SimpleQueue[Event]) -> Event:
    try:
        return events.get(timeout=TICK_S)
    except queue.Empty:
        return Event(kind="tick", time=time.time())


def _do(watched: Watch, event: Event) -> None:
    if event.kind != "tick":
        watched.note(event)
    for order in watched.decider.take(event):
        _obey(watched, order)


def _obey(watched: Watch, order: Order) -> None:
    if order.say:
        watched.say(order.say)
    cause = watched.decider.history.stop_cause or ""
    wire: Mapping[str, Any] = {"op": "stop", "grace_s": order.grace_s, "reason": cause}
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
