"""One attempt of a run: start on all nodes at once, watch to the last word of each, judge."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.diagnosis.decider import Decider
from orchestrator.diagnosis.events import Event
from orchestrator.diagnosis.tracebacks import address_in_use
from orchestrator.diagnosis.verdict import Texts, build_verdict, find_first_failure
from orchestrator.output.verdict_text import shorten_code
from orchestrator.output.wording import strip_controls
from orchestrator.phases.connect import connect
from orchestrator.phases.logstore import LogStore, Show
from orchestrator.phases.reader import NodeReader
from orchestrator.phases.record import told_as_full_disk
from orchestrator.phases.start import send_go, start_supervisors
from orchestrator.phases.texts import build_texts
from orchestrator.phases.watch import Watch, watch

if TYPE_CHECKING:
    from orchestrator.output.console import Talk
    from orchestrator.output.events import EventLog
    from orchestrator.phases.ground import Ground
    from orchestrator.phases.signals import Signals
    from orchestrator.plan.paths import ExperimentPaths
    from orchestrator.transport import Channel, Link
    from orchestrator.values import NodePlan, Plan, Verdict


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended."""

    verdict: Verdict
    port_taken: bool
    """Somebody took the rendezvous port before torchrun did, and nothing else happened."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What an attempt needs beside its plan."""

    ground: Ground
    paths: ExperimentPaths
    config_text: str | None
    log: EventLog
    show: Show
    talk: Talk
    signals: Signals
    time_limit_s: float | None


def run_attempt(attempt: Attempt, plan: Plan) -> Outcome:
    """Run one plan to its verdict; afterwards no process of it is left on a node that could be asked.

    Raises:
        AortaError: a node that cannot start; nothing was started anywhere.
    """
    ground = attempt.ground
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with told_as_full_disk(attempt.paths):
        clear_logs(attempt.paths)
    with ExitStack() as undo:
        channels = start_supervisors(ground.links, plan, attempt.config_text, ground.settings.fanout)
        for channel in channels:
            undo.callback(channel.close)
        undo.enter_context(attempt.signals.as_events(events))
        # Whatever can fail here comes before "go": until then a closed channel undoes the start.
        with told_as_full_disk(attempt.paths):
            readers = build_readers(attempt, plan, channels, events)
        if ground.proof.hold is not None:
            ground.proof.hold.release()
        started = time.time()
        undo.push(lambda kind, *_: call_off(readers, plan) if kind is not None else None)
        send_go(channels)
        for reader in readers:
            reader.start()
        decider = Decider(plan, started=started, join_limit_s=ground.settings.join_timeout_s)
        texts = build_texts(plan, attempt.paths)
        watch(
            Watch(
                decider=decider,
                readers=readers,
                events=events,
                note=lambda event: note_event(attempt.log, event),
                say=lambda words: say_event(attempt.talk, words),
                first_words=lambda: first_words(decider, texts, plan),
                on_running=lambda: ground.proof.hold.close() if ground.proof.hold is not None else None,
                time_limit_s=attempt.time_limit_s,
            )
        )
        for reader in readers:
            # The links may be new ones: what comes after (collect) goes through them.
            ground.links[reader.node.node_rank] = reader.link
    history = decider.history
    taken = (
        not history.seen and history.stop_cause == "failure" and address_in_use(texts.agent_err(0)) and not history.lost
    )
    return Outcome(verdict=build_verdict(history, texts, time.time()), port_taken=taken)


def clear_logs(paths: ExperimentPaths) -> None:
    """Set the logs of an earlier attempt aside: offsets start anew."""
    if paths.logs.exists() and any(paths.logs.iterdir()):
        number = 1
        while (aside := paths.root / f"logs_attempt_{number}").exists():
            number += 1
        paths.logs.rename(aside)
    paths.logs.mkdir(exist_ok=True)


def build_readers(
    attempt: Attempt, plan: Plan, channels: Sequence[Channel], events: queue.SimpleQueue[Event]
) -> list[NodeReader]:
    """Build one reader a node, with the files that it writes."""
    ground = attempt.ground

    def reopen(node: NodePlan) -> Link:
        link = connect([node.node], ground.settings)[0]
        link.pythons = ground.links[node.node_rank].pythons
        return link

    return [
        NodeReader(
            plan=plan,
            node=node,
            link=ground.links[node.node_rank],
            channel=channels[node.node_rank],
            store=LogStore(node, attempt.paths, attempt.show),
            events=events,
            reopen=reopen,
            lost_after_s=ground.settings.lost_after_s,
            clock_offset_s=ground.facts[node.node_rank].clock_offset_s or 0.0,
        )
        for node in plan.nodes
    ]


def note_event(log: EventLog, event: Event) -> None:
    """Write one event into events.jsonl; a full disk here must not end a run there."""
    place = {"node_rank": event.node_rank} if event.node_rank >= 0 else {}
    with suppress(OSError):
        log.record(event.kind, at=round(event.time, 3), **place, **event.data)


def say_event(talk: Talk, words: str) -> None:
    """Say something during a run; a screen that takes nothing (a full disk behind it) must not end the run."""
    with suppress(OSError):
        talk.say(words)


def call_off(readers: Sequence[NodeReader], plan: Plan) -> None:
    """Stop every node when we cannot go on ourselves."""
    for reader in readers:
        reader.order({"op": "stop", "grace_s": plan.failure_grace_s, "reason": "the launcher broke"})


def first_words(decider: Decider, texts: Texts, plan: Plan) -> str:
    """Quote what broke first, as far as it is known now."""
    first = find_first_failure(decider.history, texts)
    if first is None or not first.error:
        return ""
    who = f"rank {first.rank} on node {first.node_rank} {first.node}" if first.rank is not None else first.node
    where = f" at {shorten_code(first.traceback, plan)}" if first.traceback else ""
    return strip_controls(f"first failure: {who}: {first.error}{where}")
