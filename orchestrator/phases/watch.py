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


def watch(job: Watch) -> None:
    """Run the loop until every node has said its last word and every log byte is here."""
    limit = None if job.time_limit_s is None else time.monotonic() + job.time_limit_s
    user_stops = 0
    quoted = met = False
    while not (job.decider.over and not any(reader.is_alive() for reader in job.readers)):
        event = _next(job.events)
        if event.kind in ("interrupt", "terminate"):
            user_stops += 1
            _let_go(job, user_stops)
        if limit is not None and time.monotonic() > limit:
            limit = None
            _do(job, Event(kind="time_limit", time=time.time()))
        _do(job, event)
        if event.kind == "suspect" and user_stops > 1:
            _let_go(job, user_stops)
        quoted = quoted or _quote(job, event.time)
        if not met and (job.decider.history.all_seen or job.decider.history.agent_exits):
            met = True
            job.on_running()
    if not quoted and job.decider.history.stop_cause == "failure":
        job.say(job.first_words())


def _next(events: queue.SimpleQueue[Event]) -> Event:
    try:
        return events.get(timeout=TICK_S)
    except queue.Empty:
        return Event(kind="tick", time=time.time())


def _do(job: Watch, event: Event) -> None:
    if event.kind != "tick":
        job.note(event)
    for order in job.decider.take(event):
        _obey(job, order)


def _obey(job: Watch, order: Order) -> None:
    if order.say:
        job.say(order.say)
    cause = job.decider.history.stop_cause or ""
    wire: Mapping[str, Any] = {"op": "stop", "grace_s": order.grace_s, "reason": cause}
    for node_rank in order.stop:
        job.readers[node_rank].order(wire)


def _quote(job: Watch, now: float) -> bool:
    history = job.decider.history
    if history.stop_cause != "failure" or history.stop_time is None:
        return False
    # The node's clock may be off by more than we measured: our own is the one that counts the wait.
    if now - history.stop_time < FIRST_WORD_S:
        return False
    words = job.first_words()
    if words:
        job.say(words)
    return True


def _let_go(job: Watch, user_stops: int) -> None:
    """A second Ctrl-C does not wait for nodes that are silent; a run that is over does not wait for its logs."""
    for reader in job.readers:
        silent = reader.node.node_rank in job.decider.history.suspect
        if (user_stops >= 2 and silent) or job.decider.over:  # noqa: PLR2004 - the second Ctrl-C
            reader.give_up()
