"""The one page on how a run ended, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.text import Text

from orchestrator.diagnosis.causes import CAUSES
from orchestrator.output.wording import count, hide_secrets, render_duration, render_held, strip_controls
from orchestrator.values import Evidence, FirstFailure, Plan, RunState, Verdict

WORDS: dict[RunState, tuple[str, str]] = {
    "succeeded": ("SUCCEEDED", "bold green"),
    "failed": ("FAILED", "bold red"),
    "killed": ("KILLED", "bold yellow"),
    "timed out": ("TIMED OUT", "bold red"),
    "lost": ("LOST", "bold red"),
}
MOST_SURVIVORS = 20
MOST_FRAMES = 3
HEADLINE, LINE = 160, 400
"""Characters: who wants to read all of a message has its file and line."""
_LABEL_WIDTH = 15
Row = tuple[str, list[str]]


def render_verdict(verdict: Verdict, plan: Plan, experiment: Path | str) -> Text:
    """Render the page: one headline, then what broke first, where, whom it took along, the evidence, what to do."""
    word, style = WORDS[verdict.state]
    text = Text.assemble((word, style))
    if verdict.state == "succeeded":
        size = f"{count(plan.world_size, 'rank')} on {count(len(plan.nodes), 'node')}"
        text.append(f" in {render_duration(verdict.duration_s)} · {size} · results in {experiment}")
    else:
        culprit = _render_culprit(verdict.first_failure, plan)
        said = [f"after {render_duration(verdict.duration_s)}", culprit, one_line(verdict.cause, HEADLINE)]
        text.append(" " + " · ".join(filter(None, said)))
    append_rows(text, _build_rows(verdict, plan, experiment))
    return text


def append_rows(text: Text, rows: Iterable[Row]) -> None:
    """Append the rows of a page: a label, and behind it one line or several."""
    for label, lines in rows:
        for place, line in enumerate(lines):
            text.append(f"\n  {label if place == 0 else '':<{_LABEL_WIDTH}}", "bold")
            text.append(hide_secrets(strip_controls(line)))


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Build the JSON document of a verdict."""
    verdict = replace(
        verdict,
        cause=hide_secrets(verdict.cause),
        reason=hide_secrets(verdict.reason),
        last_lines=tuple(map(hide_secrets, verdict.last_lines)),
    )
    first = asdict(verdict.first_failure) if verdict.first_failure else None
    if first:
        first["error"] = hide_secrets(first["error"])
    if first and first["time"] is not None:
        first["time"] = _render_moment(first["time"], "milliseconds")
    return {
        "schema": 1,
        "verdict": {
            "state": verdict.state,
            "exit_code": verdict.exit_code,
            "family": verdict.family,
            "cause": verdict.cause,
            "cause_id": verdict.cause_id,
            "confidence": verdict.confidence,
            "rule": verdict.rule,
            "reason": verdict.reason,
            "first_failure": first,
            "stopped": list(verdict.stopped),
            "evidence": [asdict(evidence) for evidence in verdict.evidence],
            "remedy": verdict.remedy,
            "docs": find_docs(verdict),
            "ranks": list(verdict.ranks),
            "last_lines": list(verdict.last_lines),
            "unasked": list(verdict.unasked),
            "duration_s": round(verdict.duration_s, 3),
            "survivors": [{"node": node, "pid": pid, "command": command} for node, pid, command in verdict.survivors],
            "gpus_held": [{"node": node, "gpu": gpu, "held_mib": mib} for node, gpu, mib in verdict.gpus_held],
            "gpus_unchecked": [{"node": node, "why": why} for node, why in verdict.gpus_unchecked],
        },
    }


def _build_rows(verdict: Verdict, plan: Plan, experiment: Path | str) -> list[Row]:
    rows: list[Row] = []
    first = verdict.first_failure
    if first:
        moment = _render_moment(first.time, "seconds", " ") if first.time is not None else ""
        rows.append(("first failure", ["  ".join(filter(None, (moment, render_ending(first, LINE))))]))
        if first.traceback:
            rows.append(("where", shorten_code(render_where(first), plan).splitlines()))
    if verdict.reason:
        rows.append(("reason", [one_line(verdict.reason, LINE) + (f" ({verdict.confidence})" if first else "")]))
    if verdict.last_lines:
        rows.append(("last lines", list(verdict.last_lines)))
    stopped = "were stopped because of it" if len(verdict.stopped) != 1 else "was stopped because of it"
    if others := render_others(verdict, stopped if first else ""):
        rows.append(("others" if first else "stopped", [others]))
    rows += _build_left_rows(verdict)
    if verdict.evidence:
        rows.append(("evidence", [render_evidence(verdict.evidence)]))
    if verdict.state != "succeeded":
        rows.append(("experiment", [str(experiment)]))
    if lines := render_remedy(verdict):
        rows.append(("to do", lines))
    return rows


def render_where(first: FirstFailure) -> str:
    """Render the way into the failure: the frames of the user's own code, the deepest last."""
    return " → ".join(first.frames[-MOST_FRAMES:] or (first.traceback,))


def render_others(verdict: Verdict, how: str) -> str:
    """Render who failed of the same, and how the rest ended because of it."""
    said = []
    if alike := len(verdict.ranks) - 1 if verdict.ranks else 0:
        said.append(f"{count(alike, 'other rank')} failed of the same")
    if verdict.stopped:
        said.append(f"{count(len(verdict.stopped), 'rank')} {how}".rstrip())
    return " · ".join(said)


def find_docs(verdict: Verdict) -> str:
    """Find the section of the docs that tells of a cause; empty where there is none."""
    return next((cause.anchor for cause in CAUSES if cause.id == verdict.cause_id), "")


def render_remedy(verdict: Verdict) -> list[str]:
    """Render what to do, and where more is said about it."""
    lines, docs = verdict.remedy.splitlines(), find_docs(verdict)
    if docs:
        lines = [*lines[:-1], f"{lines[-1].rstrip('.')}; see {docs}"] if lines else [f"see {docs}"]
    return lines


def _build_left_rows(verdict: Verdict) -> list[Row]:
    """Say what of the run is left on the nodes, or may be."""
    rows: list[Row] = []
    if verdict.unasked:
        rows.append(("NOT ASKED", [f"what is left on {', '.join(verdict.unasked)} is not known"]))
    if verdict.survivors:
        shown = [f"{node} pid {pid}  {command}" for node, pid, command in verdict.survivors[:MOST_SURVIVORS]]
        more = len(verdict.survivors) - MOST_SURVIVORS
        rows.append(("STILL RUNNING", [*shown, *([f"and {more} more"] if more > 0 else [])]))
    if verdict.gpus_held:
        rows.append(("GPU MEMORY", [f"{node}: {render_held(gpu, mib)}" for node, gpu, mib in verdict.gpus_held]))
    if verdict.gpus_unchecked:
        rows.append(("GPU memory", [f"{node}: not checked: {why}" for node, why in verdict.gpus_unchecked]))
    return rows


def shorten_code(text: str, plan: Plan) -> str:
    """Write places in the pushed code as the project knows them."""
    for folder in {node.workdir.rstrip("/") for node in plan.nodes} - {""}:
        text = text.replace(f"{folder}/", "")
    return text


def _render_culprit(first: FirstFailure | None, plan: Plan) -> str:
    if first is None:
        return ""
    place = f"node {first.node_rank} {first.node}"
    address = next((node.address for node in plan.nodes if node.node_rank == first.node_rank), "")
    if address and address != first.node:
        place += f" {address}"
    if first.rank is None:
        return place
    local = f", local rank {first.local_rank}" if first.local_rank is not None else ""
    return f"rank {first.rank} ({place}{local})"


def render_ending(first: FirstFailure, most: int | None = None) -> str:
    """Render what was said first, and by what the process ended."""
    ending = ""
    if first.signal:
        ending = f"ended by {first.signal}"
    elif first.exit_code is not None:
        ending = f"exit code {first.exit_code}"
    return " · ".join(filter(None, (one_line(first.error, most), ending)))


def render_evidence(evidence: Iterable[Evidence]) -> str:
    """Render the places that show it."""
    return " · ".join(one.file if one.line is None else f"{one.file}:{one.line}" for one in evidence)


def _render_moment(time: float, timespec: str, between: str = "T") -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(between, timespec).replace("+00:00", "Z")


def one_line(text: str, most: int | None = None) -> str:
    """Write a text on one line without secrets, of at most so many characters."""
    line = hide_secrets(" ".join(strip_controls(text).split()))
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"
