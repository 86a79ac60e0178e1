"""Takes a run over whose controller is gone: follows it from what is on the disk here to its verdict."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.diagnosis.decider import KILLED_EARLY, NEVER_STARTED, Decider
from orchestrator.diagnosis.events import Event
from orchestrator.errors import NotReadyError
from orchestrator.light_dataclass import dataclass
from orchestrator.node import clock
from orchestrator.output.events import EventLog
from orchestrator.output.kill_text import is_clean, render_kill
from orchestrator.phases.connect import connect_each
from orchestrator.phases.controller import Controller
from orchestrator.phases.finish import bring_home, finish
from orchestrator.phases.follow import Desk, event_key, follow, note_event
from orchestrator.phases.hang.guard import HangGuard
from orchestrator.phases.known_runs import reach_settings
from orchestrator.phases.loggaps import cut_gaps, read_gaps
from orchestrator.phases.logview import list_files
from orchestrator.phases.reader import NodeReader
from orchestrator.phases.readers import build_readers
from orchestrator.phases.record import Record, end_entry, now_utc, told_as_full_disk
from orchestrator.phases.saved_run import read_saved_run
from orchestrator.phases.stop import stop_run
from orchestrator.phases.watch import build_stop
from orchestrator.plan.paths import launches_folder
from orchestrator.values import Exit

if TYPE_CHECKING:
    from orchestrator.diagnosis.history import History
    from orchestrator.output.console import Talk
    from orchestrator.phases.known_runs import KnownRun
    from orchestrator.phases.saved_run import SavedRun
    from orchestrator.phases.signals import Signals
    from orchestrator.plan.paths import ExperimentPaths
    from orchestrator.settings import Settings
    from orchestrator.transport import Link
    from orchestrator.values import Node, Plan


def take_over(
    known: KnownRun,
    settings: Settings,
    talk: Talk,
    signals: Signals,
    ready: Callable[[], None],
    links: Mapping[int, Link] | None = None,
) -> int:
    """Control a run to its verdict and give the exit code; `ready` is called once it is ours, or another one's.

    Links that are open already are used, by node rank.

    Raises:
        UsageError: there is no record of the run.
        NotReadyError: it, or HOME, cannot be written here.
    """
    saved = read_saved_run(known)
    record = Record.again(saved.paths, known.entry, saved.document)
    controller = Controller(record, signals)
    with ExitStack() as undo:
        if not take_seat(controller):
            ready()
            return int(Exit.DONE)
        undo.callback(controller.close)
        with told_as_full_disk(saved.paths):
            # Before we say that all is well: afterwards nobody hears us.
            saved.paths.logs.mkdir(exist_ok=True)
            saved.paths.events_jsonl.open("ab").close()
        # What the one before us wrote last, it may have written while we came.
        saved = read_saved_run(known)
        record.document.update(saved.document)
        with suppress(OSError):
            talk.keep_in(saved.paths.launch_log)
        ready()
        seat = Seat(
            reach_settings(settings, known, known.control), talk, signals, record, controller, undo, links or {}
        )
        try:
            return complete(saved, seat)
        except Exception as error:
            # Nobody hears us any more, but whoever reads launch.log.
            talk.insist(f"the controller ended: {type(error).__name__}: {error}")
            raise


def take_seat(controller: Controller) -> bool:
    """Take the lock of a run; False when another process has it.

    Raises:
        NotReadyError: HOME here is full or read-only.
    """
    try:
        return controller.open()
    except OSError as error:
        raise NotReadyError(
            what=f"the run cannot be taken over: {error.strerror}",
            where=str(error.filename or launches_folder(Path.home())),
            remedy="free space there or make it writable; aorta-launch kill works without",
        ) from error


@dataclass(frozen=True)
class Seat:
    """What the new controller sits on."""

    settings: Settings
    talk: Talk
    signals: Signals
    record: Record
    controller: Controller
    undo: ExitStack
    links: Mapping[int, Link]

    def reach(self, nodes: Sequence[Node]) -> dict[int, Link]:
        """Give a link to every node that is reached, by node rank."""
        return dict(self.links) or connect_each(nodes, self.settings)[0]


def complete(saved: SavedRun, seat: Seat) -> int:
    """Do what is left to do for a run, from wherever it was left."""
    plan, verdict = saved.plan, saved.verdict
    if verdict is not None and plan is not None and not saved.reopened:
        end_entry(saved.known.entry, live=bool(verdict.survivors or verdict.unasked))
        if saved.complete:
            return verdict.exit_code
        links = seat.reach(saved.known.nodes)
        everyone = [links.get(node.node_rank) for node in plan.nodes]
        return bring_home(everyone, seat.settings, plan, verdict, seat.record, seat.talk)
    if plan is None or saved.went is None:
        return call_off(saved, seat)
    return follow_on(saved, plan, saved.went, seat)


def call_off(saved: SavedRun, seat: Seat) -> int:
    """Undo a start that its launcher did not live to complete."""
    seat.talk.say(f"{saved.known.run_id}: {KILLED_EARLY}; undoing it")
    reports = stop_run(saved.known.nodes, seat.settings, saved.known.run_id)
    seat.talk.say(render_kill(reports))
    if not is_clean(reports):
        names = ", ".join(report.node for report in reports if report.error or report.survivors)
        why = f"its start could not be undone on {names}; once that answers: aorta-launch kill {saved.known.run_id}"
        seat.record.write(state="unknown", error=why)
        return int(Exit.FAILED)
    seat.record.end_without_start(f"{KILLED_EARLY}; nothing is left")
    return int(Exit.NOT_READY)


def follow_on(saved: SavedRun, plan: Plan, went: float, seat: Seat) -> int:
    """Follow a run that is under way; every log byte comes once, and what is known is not told again."""
    settings, record = seat.settings, seat.record
    seat.talk.say(f"taking {plan.run_id} over")
    links = seat.reach([node.node for node in plan.nodes])
    with told_as_full_disk(saved.paths):
        log = EventLog(saved.paths.events_jsonl)
    seat.undo.callback(log.close)
    log.record("taken_over")
    record.document.setdefault("taken_over", []).append(now_utc())
    limit = settings.timeout_s
    hang = HangGuard(settings, record, lambda *_: None)
    desk = Desk(
        paths=saved.paths,
        log=log,
        talk=seat.talk,
        controller=seat.controller,
        hang=hang,
        time_limit_s=None if limit is None else max(0.0, went + limit - clock.now()),
    )
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with told_as_full_disk(saved.paths):
        readers = build_readers(
            plan, settings, saved.paths, desk.show, events, links=links, clock_offsets=saved.clock_offsets
        )
    decider = Decider(plan, started=went, join_limit_s=settings.join_timeout_s, begun=clock.now())
    recall(desk, decider, readers)
    # A line that somebody edited is no reason to leave a run alone.
    with suppress(LookupError, TypeError, ValueError):
        note_gaps(desk, saved)

    def note(stage: str) -> None:
        if stage in ("running", "stopping"):
            record.write(state=stage)

    with seat.signals.as_events(events):
        followed = follow(desk, decider, readers, events, note)
    if followed is None:
        return int(Exit.DONE)
    if never_started(followed.history):
        seat.talk.insist(f"{plan.run_id} was not started: {KILLED_EARLY}; nothing is left")
        record.end_without_start(f"{KILLED_EARLY}; nothing is left")
        return int(Exit.NOT_READY)
    return finish([reader.link for reader in readers], settings, plan, followed.verdict, record, desk, seat.signals)


def never_started(history: History) -> bool:
    """Tell whether every node ended itself because nobody had told it to start."""
    reasons = [str(final.get("reason")) for final in history.finals.values()]
    return not history.agents and len(reasons) == len(history.plan.nodes) and set(reasons) <= set(NEVER_STARTED)


def recall(desk: Desk, decider: Decider, readers: Sequence[NodeReader]) -> None:
    """Go on from what was written down: who ran, and why the run was being stopped."""
    events = read_events(desk.paths)
    stopped_somebody = any(document["kind"] in ("stopping", "final") for document in events)
    for document in events:
        desk.noted.add(event_key(document))
        if document["kind"] == "stop" and document.get("cause") == "lost" and not stopped_somebody:
            continue  # nobody has heard of it: where the run still is on, it goes on
        # A line that somebody edited is no reason to leave a run alone.
        with suppress(LookupError, TypeError, ValueError):
            _recall_one(document, decider, readers)
    # Nobody has spoken to us yet.
    decider.history.heard.clear()


def _recall_one(document: dict[str, Any], decider: Decider, readers: Sequence[NodeReader]) -> None:
    kind, node_rank = document["kind"], int(document.get("node_rank", -1))
    if kind not in ("agent", "rank", "hang", "stop"):
        return
    fields = {name: value for name, value in document.items() if name not in ("time", "kind", "at", "node_rank")}
    # Into the history alone: what is to be done about it is decided when the node tells it to us.
    if kind == "stop":
        order = build_stop(document["cause"], float(document["grace_s"]))
        decider.history.take(Event(kind="stop", time=document["at"], node_rank=node_rank, data=fields))
        for reader in readers:
            reader.order(order)
    elif kind in ("agent", "hang") or int(document["world_size"]) == decider.plan.world_size:
        decider.history.take(Event(kind=kind, time=document["at"], node_rank=node_rank, data=fields))


def note_gaps(desk: Desk, saved: SavedRun) -> None:
    """Note the gaps of log files that the one before us wrote down and did not live to tell."""
    found, told = read_gaps(saved.paths.gaps_jsonl), read_events(saved.paths)
    for file in list_files(saved.document["plan"], saved.paths) if found else ():
        own = {"kind": "gap", "node_rank": file.node_rank, "file": file.name}
        known = [(int(one["from"]), int(one["to"])) for one in told if own.items() <= one.items()]
        for start, end in cut_gaps(found.get(file.path.name, []), known):
            data = {"file": file.name, "rank": file.rank, "from": start, "to": end}
            note_event(desk, Event(kind="gap", time=clock.now(), node_rank=file.node_rank, data=data))


def read_events(paths: ExperimentPaths) -> list[dict[str, Any]]:
    """Read what has been written down of the latest attempt; a last line that is torn is left out."""
    events: list[dict[str, Any]] = []
    try:
        lines = paths.events_jsonl.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    for line in lines:
        with suppress(ValueError):
            event = json.loads(line)
            if not isinstance(event, dict) or "kind" not in event:
                continue
            if event["kind"] == "attempt":
                events.clear()
            events.append(event)
    return events
