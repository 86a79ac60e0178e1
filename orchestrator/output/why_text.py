"""The page on why a run ended badly that there are only logs of, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from orchestrator.diagnosis.ladder.facts import NO_SIGN
from orchestrator.output.verdict_text import (
    WORDS,
    Row,
    append_rows,
    one_line,
    render_ending,
    render_evidence,
    render_others,
    render_remedy,
    render_where,
    verdict_document,
)
from orchestrator.values import FirstFailure, Verdict

MOST_UNREAD = 6


def render_why(verdict: Verdict, source: str, job: str = "", unread: Sequence[str] = ()) -> Text:
    """Render the page: one headline, then what broke first, where, whom it took along, how it was found, what to do."""
    word, style = WORDS[verdict.state] if verdict.rule != NO_SIGN else ("UNDECIDED", "bold yellow")
    text = Text()
    if job:
        text.append(f"{job}  ")
    text.append(word, style)
    said = [_render_culprit(verdict.first_failure), one_line(verdict.cause)]
    if verdict.state == "succeeded":
        said = [verdict.cause or verdict.reason]
    text.append("".join(f" · {part}" for part in said if part))
    rows = _build_rows(verdict, source)
    if unread:
        rows.append(("not read", [" · ".join(unread[:MOST_UNREAD])]))
    append_rows(text, rows)
    return text


def why_document(verdict: Verdict, job: str = "") -> dict[str, Any]:
    """Build the JSON document; a failure that no node can be blamed for has the same keys with nothing in them."""
    document = verdict_document(verdict)
    told = document["verdict"]
    if told["first_failure"] is None and verdict.state != "succeeded":
        empty = ("node", "node_rank", "rank", "local_rank", "time", "exit_code", "signal")
        told["first_failure"] = {**dict.fromkeys(empty), "error": verdict.cause, "traceback": "", "frames": []}
    first = told["first_failure"]
    if first is not None and not first["node"]:
        first["node"] = first["node_rank"] = None
    if job:
        told["job"] = job
    return document


def _build_rows(verdict: Verdict, source: str) -> list[Row]:
    rows: list[Row] = []
    first = verdict.first_failure
    if verdict.state == "succeeded":
        return rows
    if first is not None:
        rows.append(("first failure", [_render_first(first)]))
        if first.traceback:
            rows.append(("where", [render_where(first)]))
    if others := render_others(verdict, "ended because of it"):
        rows.append(("others", [others]))
    if verdict.reason:
        rows.append(("reason", [f"{one_line(verdict.reason)} ({verdict.confidence}, rule {verdict.rule})"]))
    if verdict.last_lines:
        rows.append(("last lines", [one_line(line) for line in verdict.last_lines]))
    if verdict.evidence:
        rows.append(("evidence", [render_evidence(verdict.evidence)]))
    rows.append(("logs", [source]))
    if lines := render_remedy(verdict):
        rows.append(("to do", lines))
    return rows


def _render_culprit(first: FirstFailure | None) -> str:
    if first is None:
        return ""
    if first.rank is None:
        return f"node {first.node}" if first.node else ""
    local = f", local rank {first.local_rank}" if first.local_rank is not None else ""
    return f"rank {first.rank}" + (f" (node {first.node_rank} {first.node}{local})" if first.node else "")


def _render_first(first: FirstFailure) -> str:
    moment = ""
    if first.time is not None:
        # torchrun writes the node's own time and no zone.
        moment = datetime.fromtimestamp(first.time, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return "  ".join(filter(None, (moment, render_ending(first))))
