"""One attempt of a run: start on all nodes at once, watch to the last word of each, judge."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from orchestrator.diagnosis.decider import Decider
from orchestrator.diagnosis.events import Event
from orchestrator.diagnosis.logs.tracebacks import address_in_use
from orchestrator.light_dataclass import dataclass
from orchestrator.node import clock
from orchestrator.phases.follow import Desk, Followed, follow
from orchestrator.phases.reader import NodeReader
from orchestrator.phases.readers import build_readers
from orchestrator.phases.record import Record, told_as_full_disk
from orchestrator.phases.start import send_go, start_supervisors

if TYPE_CHECKING:
    from orchestrator.phases.ground import Ground
    from orchestrator.phases.signals import Signals
    from orchestrator.phases.watch import Stage
    from orchestrator.plan.paths import ExperimentPaths
    from orchestrator.values import Plan, Verdict


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
    desk: Desk
    record: Record
    signals: Signals
    on_stage: Callable[[Stage], None]


def run_attempt(attempt: Attempt, plan: Plan) -> Outcome | None:
    """Run one plan to its verdict; afterwards no process of it is left on a node that could be asked.

    Gives None when we were told to leave the run to somebody else.

    Raises:
        AortaError: a node that cannot start; nothing was started anywhere.
    """
    ground, desk = attempt.ground, attempt.desk
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with told_as_full_disk(desk.paths):
        clear_logs(desk.paths)
    hold = ground.proof.hold
    with ExitStack() as undo:
        if hold is not None:
            # Beside the start, which takes as long: nobody else can bind the port meanwhile.
            hold.ask_release()
        channels = start_supervisors(ground, plan)
        for channel in channels:
            undo.callback(channel.close)
        undo.enter_context(attempt.signals.as_events(events))
        # Whatever can fail here comes before "go": until then a closed channel undoes the start.
        with told_as_full_disk(desk.paths):
            readers = build_readers(
                plan,
                ground.settings,
                desk.paths,
                desk.show,
                events,
                links=dict(enumerate(ground.links)),
                clock_offsets={facts.node_rank: facts.clock_offset_s or 0.0 for facts in ground.facts},
                channels=dict(enumerate(channels)),
            )
        if hold is not None:
            hold.await_release()
        started = clock.now()
        undo.push(lambda kind, *_: call_off(readers, plan) if kind is not None else None)
        # Written first: a run that is under way must never be taken for one that was not started.
        attempt.record.note_went(started)
        send_go(channels)
        decider = Decider(plan, started=started, join_limit_s=ground.settings.join_timeout_s)
        followed = follow(desk, decider, readers, events, attempt.on_stage)
        for reader in readers:
            # The links may be new ones: what comes after (collect) goes through them.
            if reader.link is not None:
                ground.links[reader.node.node_rank] = reader.link
    return judge_outcome(followed) if followed is not None else None


def judge_outcome(followed: Followed) -> Outcome:
    """Tell an attempt whose port was taken by somebody else from one that really ran."""
    history = followed.history
    taken = (
        not history.seen
        and history.stop_cause == "failure"
        and address_in_use(followed.texts.agent_err(0))
        and not history.lost
    )
    return Outcome(verdict=followed.verdict, port_taken=taken)


def clear_logs(paths: ExperimentPaths) -> None:
    """Set the logs of an earlier attempt aside: offsets start anew."""
    if paths.logs.exists() and any(paths.logs.iterdir()):
        number = 1
        while (aside := paths.root / f"logs_attempt_{number}").exists():
            number += 1
        paths.logs.rename(aside)
    paths.logs.mkdir(exist_ok=True)


def call_off(readers: Sequence[NodeReader], plan: Plan) -> None:
    """Stop every node when we cannot go on ourselves."""
    for reader in readers:
        reader.order({"op": "stop", "grace_s": plan.failure_grace_s, "reason": "the launcher broke"})
