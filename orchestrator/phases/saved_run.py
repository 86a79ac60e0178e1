"""A run as its record on the launch host tells it: enough to show it, and to take it over."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.light_dataclass import dataclass
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.typed_json import from_json
from orchestrator.values import Plan, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.phases.known_runs import KnownRun
    from orchestrator.values import Node


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """One run's record."""

    known: KnownRun
    paths: ExperimentPaths
    document: dict[str, Any]
    """All of run.json."""
    state: str
    plan: Plan | None
    """None while nothing had been planned; without the environment of the ranks."""
    verdict: Verdict | None
    went: float | None
    """When every node was told to start, in seconds since the epoch; None: not yet."""

    @property
    def reopened(self) -> bool:
        """A node was lost, and nobody knows what became of the run there: whoever reaches it again goes on."""
        return self.verdict is not None and self.verdict.state == "lost" and bool(self.verdict.unasked)

    @property
    def complete(self) -> bool:
        """It has ended, and what it wrote is here."""
        return (
            not self.reopened and "collected" in (self.document.get("timings") or {})
        ) or self.state == "not started"

    @property
    def clock_offsets(self) -> dict[int, float]:
        """How far each node's clock was ahead at the start, by node rank."""
        told = self.document.get("versions") or ()
        return {one.get("node_rank", -1): one.get("clock_offset_s") or 0.0 for one in told if isinstance(one, dict)}


def read_saved_run(known: KnownRun) -> SavedRun:
    """Read the record of a run.

    Raises:
        UsageError: it is gone, or is no record.
    """
    paths = ExperimentPaths(Path(known.experiment))
    try:
        document = json.loads(paths.run_json.read_text("utf-8"))
        plan = document.get("plan")
        return SavedRun(
            known=known,
            paths=paths,
            document=document,
            state=str(document["state"]),
            plan=_parse_plan(plan, known.nodes) if plan else None,
            verdict=parse_verdict(document["verdict"]) if document.get("verdict") else None,
            went=document.get("went"),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is no record of a run ({error})"
        raise UsageError(
            what=f"the record of {known.run_id} cannot be read: {why}",
            where=str(paths.run_json),
            remedy=f"aorta-launch kill {known.run_id} still stops it: the nodes are known",
        ) from None


def _parse_plan(document: Mapping[str, Any], nodes: Sequence[Node]) -> Plan:
    own = [{**one, "node": nodes[one["node_rank"]], "env": ()} for one in document["nodes"]]
    return from_json(Plan, {**document, "nodes": own})


def parse_verdict(document: Mapping[str, Any]) -> Verdict:
    """Build the verdict that was written down."""
    survivors = [(one["node"], one["pid"], one["command"]) for one in document["survivors"]]
    held = [(one["node"], one["gpu"], one["held_mib"]) for one in document.get("gpus_held", ())]
    unchecked = [(one["node"], one["why"]) for one in document.get("gpus_unchecked", ())]
    first = document.get("first_failure")
    if first and first.get("time"):
        first = {**first, "time": datetime.fromisoformat(first["time"]).timestamp()}
    gpus = {"gpus_held": held, "gpus_unchecked": unchecked}
    return from_json(Verdict, {**document, **gpus, "survivors": survivors, "first_failure": first})
