"""What is said of a hang: once when it is found, once when the run goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestrator.output.wording import render_duration, strip_controls

if TYPE_CHECKING:
    from orchestrator.diagnosis.case import Odd
    from orchestrator.values import Plan

MOST_PLACES = 4


def render_hang(
    odd: Odd | None, plan: Plan, *, since: float, now: float, folder: str, action: str, silent: Sequence[str] = ()
) -> str:
    """Render the report: since when, who waits in what, who is odd and where, and what can be done."""
    head = f"HANG since {_clock(since)} ({render_duration(now - since)})"
    cause = name_places(odd.cause, odd.ranks, plan) if odd is not None else "no node told what its ranks do"
    rows = [("where", odd.where)] if odd is not None and odd.where else []
    rows += [("no answer", ", ".join(silent))] if silent else []
    rows.append(("evidence", folder))
    if action == "warn":
        rows.append(("to do", f"it goes on as it is; aorta-launch stacks {plan.run_id} looks again, kill stops it"))
    lines = [f"{head} · {cause}", *(f"  {label:<15}{text}" for label, text in rows)]
    return strip_controls("\n".join(lines))


def name_places(cause: str, ranks: Sequence[int], plan: Plan) -> str:
    """Say of each odd rank, where it is named first, on which node it runs."""
    for rank in ranks[:MOST_PLACES]:
        node = next((node for node in plan.nodes if rank in node.ranks), None)
        if node is not None:
            place = f"node {node.node_rank} {node.node.name}"
            if node.address and node.address != node.node.name:
                place += f" {node.address}"
            named = f"rank {rank} ({place}, local rank {rank - node.first_rank})"
            found = re.search(rf"\brank {rank}\b", cause)
            if found is not None:
                cause = cause[: found.start()] + named + cause[found.end() :]
    return cause


def render_over(hang: Mapping[str, Any], now: float) -> str:
    """Say that a run goes on after a hang."""
    since = float(hang["since"])
    return f"it goes on again, after {render_duration(now - since)} (hang since {_clock(since)})"


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment).astimezone().strftime("%H:%M:%S")
