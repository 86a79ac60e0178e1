"""Judges a run of ours whose controller died before it could: by the events and texts that it left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, get_args

from orchestrator.diagnosis.decider import Decider
from orchestrator.diagnosis.events import Event, Kind
from orchestrator.diagnosis.verdict import build_verdict
from orchestrator.phases.saved_run import SavedRun
from orchestrator.phases.takeover import read_events
from orchestrator.phases.texts import build_texts
from orchestrator.values import Plan, Verdict

JOIN_LIMIT_S = float("inf")
"""Nobody waits any more."""


def replay_verdict(saved: SavedRun, plan: Plan) -> Verdict | None:
    """Build the verdict that would have been given; None while nothing is known of any end."""
    began = saved.went or 0.0
    decider = Decider(plan, started=began, join_limit_s=JOIN_LIMIT_S)
    last = began
    for document in read_events(saved.paths):
        # A line that somebody edited is no reason to know nothing.
        with suppress(LookupError, TypeError, ValueError):
            event = _build_event(document)
            if event is not None:
                decider.take(event)
                last = max(last, event.time)
    history = decider.history
    if not (history.exits or history.agent_exits or history.lost or history.stop_cause):
        return None
    return build_verdict(history, build_texts(plan, saved.paths, _read_told(saved, plan)), last)


def _build_event(document: Mapping[str, Any]) -> Event | None:
    if document["kind"] not in get_args(Kind) or "at" not in document:
        return None
    data = {name: value for name, value in document.items() if name not in ("time", "kind", "at", "node_rank")}
    return Event(
        kind=document["kind"], time=float(document["at"]), node_rank=int(document.get("node_rank", -1)), data=data
    )


def _read_told(saved: SavedRun, plan: Plan) -> dict[int, Mapping[str, Any]]:
    """Read what the nodes wrote down when the run broke."""
    told: dict[int, Mapping[str, Any]] = {}
    for node in plan.nodes:
        with suppress(OSError, ValueError):
            document = json.loads(saved.paths.node_evidence(node.node_rank).read_text("utf-8"))
            if isinstance(document, dict):
                told[node.node_rank] = document
    return told
