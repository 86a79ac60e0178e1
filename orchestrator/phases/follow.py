"""Follows one attempt of a run from "go", or from where another process left it, to its verdict."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

from orchestrator.diagnosis.decider import Decider
from orchestrator.diagnosis.events import Event
from orchestrator.diagnosis.explain import quote_first
from orchestrator.diagnosis.live import Texts
from orchestrator.diagnosis.verdict import build_verdict
from orchestrator.light_dataclass import dataclass
from orchestrator.node import clock
from orchestrator.output.verdict_text import shorten_code
from orchestrator.output.wording import hide_secrets, strip_controls
from orchestrator.phases.evidence import Gathering
from orchestrator.phases.reader import NodeReader
from orchestrator.phases.texts import build_texts
from orchestrator.phases.watch import Stage, Watch, watch

if TYPE_CHECKING:
    from orchestrator.diagnosis.history import History
    from orchestrator.output.console import Talk
    from orchestrator.output.events import EventLog
    from orchestrator.phases.controller import Controller
    from orchestrator.phases.hang.guard import HangGuard
    from orchestrator.phases.logstore import Show
    from orchestrator.plan.paths import ExperimentPaths
    from orchestrator.values import Plan, Verdict


LEAVE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What whoever watches a run works with."""

    paths: ExperimentPaths
    log: EventLog
    talk: Talk
    controller: Controller
    hang: HangGuard
    time_limit_s: float | None = None
    noted: set[str] = field(default_factory=set)
    """What a controller before us has written into events.jsonl."""

    @property
    def show(self) -> Show:
        """Takes what the ranks write, on its way to the screen."""
        return self.hang.show


@dataclass(frozen=True, kw_only=True)
class Followed:
    """An attempt that has ended."""

    verdict: Verdict
    history: History
    texts: Texts


def follow(
    desk: Desk,
    decider: Decider,
    readers: Sequence[NodeReader],
    events: queue.SimpleQueue[Event],
    on_stage: Callable[[Stage], None],
) -> Followed | None:
    """Watch a plan to its verdict; None when we were told to leave it to somebody else."""
    plan = decider.plan
    desk.controller.follow(events, readers, decider)
    for reader in readers:
        reader.start()
    evidence = Gathering(desk.paths, readers)
    texts = build_texts(plan, desk.paths, evidence.told)
    desk.hang.begin(decider, readers, events)
    ended = watch(
        Watch(
            decider=decider,
            readers=readers,
            events=events,
            note=lambda event: note_event(desk, event),
            say=lambda words: say_event(desk.talk, words),
            first_words=lambda: first_words(decider, texts, plan),
            on_trouble=evidence.gather,
            on_stage=on_stage,
            time_limit_s=desk.time_limit_s,
        )
    )
    desk.hang.end()
    if not ended:
        for reader in readers:
            reader.leave()
        for reader in readers:
            # Whoever comes next writes into the same files.
            reader.join(LEAVE_S)
        return None
    evidence.wait()
    verdict = build_verdict(decider.history, texts, clock.now())
    return Followed(verdict=verdict, history=decider.history, texts=texts)


def note_event(desk: Desk, event: Event) -> None:
    """Write one event into events.jsonl, once; a full disk here must not end a run there."""
    place = {"node_rank": event.node_rank} if event.node_rank >= 0 else {}
    fields = {"at": round(event.time, 3), **place, **event.data}
    if desk.noted and event_key({"kind": event.kind, **fields}) in desk.noted:
        return
    with suppress(OSError):
        desk.log.record(event.kind, **fields)
    if event.kind in ("hang", "hang_over"):
        desk.hang.keep(event)


def event_key(document: dict[str, object]) -> str:
    """Tell an event from every other one, whenever it was written down."""
    return json.dumps({name: value for name, value in document.items() if name != "time"}, sort_keys=True, default=str)


def say_event(talk: Talk, words: str) -> None:
    """Say something during a run; a screen that takes nothing (a full disk behind it) must not end the run."""
    with suppress(OSError):
        talk.say(words)


def first_words(decider: Decider, texts: Texts, plan: Plan) -> str:
    """Quote what broke first, as far as it is known now."""
    told = quote_first(decider.history, texts)
    first = told.first if told else None
    if first is None or not first.error:
        return ""
    who = f"rank {first.rank} on node {first.node_rank} {first.node}" if first.rank is not None else first.node
    where = f" at {shorten_code(first.traceback, plan)}" if first.traceback else ""
    return hide_secrets(strip_controls(f"first failure: {who}: {first.error}{where}"))
