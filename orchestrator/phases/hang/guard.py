"""Watches a run for progress in a thread of its own; when it hangs, has the evidence saved and tells the watch loop."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.diagnosis.events import Event
from orchestrator.diagnosis.hang.activity import Activity, fold_activity
from orchestrator.diagnosis.hang.stacks_node import list_stacks
from orchestrator.diagnosis.hang.watch import Action, HangRules, HangWatch, TakenOver
from orchestrator.diagnosis.hang.words import find_moved
from orchestrator.node import clock
from orchestrator.node.progress import parse_step, read_lines
from orchestrator.output.hang_text import render_over
from orchestrator.phases.answers import ask_nodes
from orchestrator.phases.hang.pulse import Pulse
from orchestrator.phases.hang.report import Report, gather, gather_rest
from orchestrator.phases.stacks import STACKS_S, look_at_node

if TYPE_CHECKING:
    import queue

    from orchestrator.diagnosis.decider import Decider
    from orchestrator.phases.logstore import Show
    from orchestrator.phases.reader import NodeReader
    from orchestrator.phases.record import Record
    from orchestrator.plan.paths import ExperimentPaths
    from orchestrator.settings import Settings

TICK_S = 0.5
WINDOW_S = 2.0
"""So long the ranks are measured when we want to know whether they work."""
ANSWER_S = 8.0
AGAIN_S = 3.0
"""A stack that has moved by then belongs to a rank that works."""
LEAVE_S = 0.2
STEP_TAIL = 1 << 14


class HangGuard:
    """Guards one run from the moment its ranks run until it is over; over several attempts, one at a time."""

    def __init__(self, settings: Settings, record: Record, show: Show) -> None:
        self.rules = HangRules(
            after_s=settings.hang_after_s, grace_s=settings.hang_grace_s, action=settings.hang_action
        )
        self.py_spy = settings.py_spy
        self._record = record
        self._pulse = Pulse(show)
        self.show = self._pulse.show
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(
        self,
        decider: Decider,
        readers: Sequence[NodeReader],
        events: queue.SimpleQueue[Event],
    ) -> None:
        """Guard an attempt; one of which ranks are known already is taken over."""
        if self.rules.action == "off":
            return
        self._stop = threading.Event()
        history = decider.history
        taken = recall(self._record.paths, history.started if history.all_seen else None) if history.seen else None
        watch = HangWatch(self.rules, time.monotonic(), taken=taken)
        guarded = _Guarded(self, decider, readers, events, watch, self._stop)
        if taken is not None:
            guarded.resume(self._record.document.get("hangs") or ())
        self._thread = threading.Thread(target=guarded.run, name="hang", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let an attempt go that is over, or somebody else's from now on."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(LEAVE_S)
            self._thread = None

    @property
    def pulse(self) -> Pulse:
        """What the ranks write."""
        return self._pulse

    @property
    def paths(self) -> ExperimentPaths:
        """Where the run is recorded."""
        return self._record.paths

    def keep(self, event: Event) -> None:
        """Put a hang, or its end, down in run.json; called where nobody else writes it."""
        self._record.write(hangs=fold_hangs(self._record.document.get("hangs") or (), event))


class _Guarded:
    """One attempt under guard: what the thread works with."""

    def __init__(
        self,
        guard: HangGuard,
        decider: Decider,
        readers: Sequence[NodeReader],
        events: queue.SimpleQueue[Event],
        watch: HangWatch,
        stop: threading.Event,
    ) -> None:
        self._guard = guard
        self._decider = decider
        self._readers = readers
        self._events = events
        self._watch = watch
        self._stop = stop
        self._activity: Mapping[int, Mapping[str, Any]] = {}
        self._spins = False
        self._hang: dict[str, Any] = {}

    def resume(self, hangs: Sequence[Mapping[str, Any]]) -> None:
        """Go on with a hang that a controller before us has told of, so that it is told once."""
        last = hangs[-1] if hangs else {"over": True}
        # One that was to end the run did not, or we would not be here.
        if "over" not in last and last.get("action") != "stop":
            self._hang = dict(last)
            self._watch.note_report(time.monotonic())

    def run(self) -> None:
        """Look again and again, until told to leave."""
        while not self._stop.wait(TICK_S):
            try:
                self._look_once()
            except Exception:  # noqa: BLE001 - a bug here must not end the guard, let alone the run
                with contextlib.suppress(OSError):
                    self._guard.paths.diagnosis.mkdir(exist_ok=True)
                    (self._guard.paths.diagnosis / "hang_watch_broke.txt").write_text(traceback.format_exc(), "utf-8")

    def _look_once(self) -> None:
        history, now = self._decider.history, time.monotonic()
        self._guard.pulse.tell(self._watch)
        if history.suspect or history.lost or len(history.heard) < len(history.plan.nodes):
            self._watch.note_away(now)
        exits = dict(history.exits)
        alive = len(exits) < len(history.seen)
        failed = any(not exit_.clean for exit_ in exits.values())
        runs = history.all_seen and alive and not failed and history.stop_cause is None and not history.over
        due = self._watch.due(now, runs=runs)
        if due == "look":
            activity = self._measure()
            self._watch.note_activity(time.monotonic(), activity)
        elif due == "gather":
            self._report()
        elif due == "over":
            self._watch.note_over(now)
            data = {"since": self._hang["since"], "words": render_over(self._hang, clock.now())}
            self._post("hang_over", data)

    def _measure(self) -> Activity | None:
        self._activity = ask_nodes(self._readers, {"op": "activity", "window_s": WINDOW_S}, WINDOW_S + ANSWER_S)
        activity = fold_activity(list(self._activity.values())) if self._activity else None
        self._spins = activity is not None and activity.spins
        return activity

    def _report(self) -> None:
        watch, history = self._watch, self._decider.history
        noticed, since = time.monotonic(), watch.since
        action = self._find_action()
        if action is None:
            watch.note_moving(time.monotonic())
            return
        report = Report(
            plan=history.plan,
            paths=self._guard.paths,
            readers=self._readers,
            since=clock.now() - (noticed - since),
            action=action,
            py_spy=self._guard.py_spy,
            ended=tuple(sorted(rank for rank, exit_ in dict(history.exits).items() if exit_.clean)),
        )
        gather(report, self._activity, clock.now())
        self._guard.pulse.tell(watch)
        if self._stop.is_set() or watch.since > since or history.stop_cause is not None:
            return  # it went on, or somebody stopped it, while we looked: what we saved does no harm
        watch.note_report(time.monotonic())
        if action == "stop":
            gather_rest(report, clock.now())  # before anything is killed
        self._hang = build_event_data(report)
        self._post("hang", self._hang)
        if action != "stop":
            gather_rest(report, clock.now())

    def _find_action(self) -> Action | None:
        """Look twice: small pieces of work and waiting look alike, stacks do not; None: it is no hang.

        Where some stand and others move on it is told, and nothing is stopped for it.
        """
        before = self._stacks()
        if self._stop.wait(AGAIN_S):
            return None
        after = self._stacks()
        moved, action = find_moved(before, after), self._watch.rules.action
        if moved and (self._spins or len(moved) == len(after)):
            return None
        return "warn" if moved else action

    def _stacks(self) -> list[Any]:
        answers = ask_nodes(self._readers, {"op": "stacks"}, STACKS_S)
        nodes = self._decider.plan.nodes
        return list_stacks(look_at_node(None, rank, nodes[rank].node.name, one) for rank, one in answers.items())

    def _post(self, kind: Any, data: Mapping[str, Any]) -> None:
        self._events.put(Event(kind=kind, time=clock.now(), data=data))


def build_event_data(report: Report) -> dict[str, Any]:
    """Build what is told of a hang to the watch loop, to events.jsonl and to run.json."""
    odd = report.odd
    return {
        "number": report.number,
        "action": report.action,
        "since": round(report.since, 3),
        "family": odd.family if odd is not None else "HANG",
        "ranks": list(odd.ranks) if odd is not None else [],
        "rule": odd.rule if odd is not None else "silence",
        "confidence": odd.confidence if odd is not None else "unknown",
        "cause": odd.cause if odd is not None else "the run makes no progress",
        "where": odd.where if odd is not None else "",
        "evidence": [{"file": one.file, "line": one.line} for one in (odd.evidence if odd is not None else ())],
        "words": report.words,
    }


def fold_hangs(hangs: Sequence[Mapping[str, Any]], event: Event) -> list[dict[str, Any]]:
    """Add a hang to those that are known, or note of the last one that it is over."""
    known = [dict(hang) for hang in hangs]
    if event.kind == "hang":
        if not any(hang.get("number") == event.data["number"] for hang in known):
            known.append({name: value for name, value in event.data.items() if name != "words"})
    elif known:
        known[-1]["over"] = round(event.time, 3)
    return known


def recall(paths: ExperimentPaths, running_since: float | None) -> TakenOver:
    """Read of a run that is taken over when it wrote last, and whether it has told a step."""
    latest, stepped = 0.0, False
    for path in paths.logs.glob("rank_*"):
        with contextlib.suppress(OSError):
            state = path.stat()
            latest = max(latest, state.st_mtime if state.st_size else 0.0)
            if not stepped and state.st_size:
                with path.open("rb") as file:
                    file.seek(max(0, state.st_size - STEP_TAIL))
                    stepped = parse_step(read_lines(file.read())) is not None
    wall, now = clock.now(), time.monotonic()

    def here(moment: float) -> float:
        return now - max(0.0, wall - moment)

    return TakenOver(
        silent_since=here(latest) if latest else now,
        running_since=None if running_since is None else here(running_since),
        stepped=stepped,
    )
