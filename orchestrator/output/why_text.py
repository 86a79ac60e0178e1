"""The page on why a run ended badly that there are only logs of, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from orchestrator.diagnosis.ladder.facts import NO_SIGN
from orchestrator.output.verdict_text import WORDS, render_remedy, verdict_document
from orchestrator.output.wording import count, hide_secrets, strip_controls
from orchestrator.values import FirstFailure, Verdict

LABEL_WIDTH = 15
MOST_FRAMES = 3
MOST_UNREAD = 6


def render_why(verdict: Verdict, source: str, job: str = "", unread: Sequence[str] = ()) -> Text:
    """Render the page: one headline, then what broke first, where, whom it took along, how it was found, what to do."""
    word, style = WORDS[verdict.state] if verdict.rule != NO_SIGN else ("UNDECIDED", "bold yellow")
    text = Text()
    if job:
        text.append(f"{job}  ")
    text.append(word, style)
    said = [_render_culprit(verdict.first_failure), _one_line(verdict.cause)]
    if verdict.state == "succeeded":
        said = [verdict.cause or verdict.reason]
    text.append("".join(f" · {part}" for part in said if part))
    rows = _build_rows(verdict, source)
    if unread:
        rows.append(("not read", [" · ".join(unread[:MOST_UNREAD])]))
    for label, lines in rows:
        for place, line in enumerate(lines):
            text.append(f"\n  {label if place == 0 else '':<{LABEL_WIDTH}}", "bold")
            text.append(hide_secrets(strip_controls(line)))
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


def _build_rows(verdict: Verdict, source: str) -> list[tuple[str, list[str]]]:
    rows: list[tuple[str, list[str]]] = []
    first = verdict.first_failure
    if verdict.state == "succeeded":
        return rows
    if first is not None:
        rows.append(("first failure", [_render_first(first)]))
        if first.traceback:
            rows.append(("where", [" → ".join(first.frames[-MOST_FRAMES:] or (first.traceback,))]))
    if others := _render_others(verdict):
        rows.append(("others", [others]))
    if verdict.reason:
        rows.append(("reason", [f"{_one_line(verdict.reason)} ({verdict.confidence}, rule {verdict.rule})"]))
    if verdict.last_lines:
        rows.append(("last lines", [_one_line(line) for line in verdict.last_lines]))
    places = [f"{one.file}:{one.line}" if one.line is not None else one.file for one in verdict.evidence]
    if places:
        rows.append(("evidence", [" · ".join(places)]))
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
    ending = ""
    if first.signal:
        ending = f"ended by {first.signal}"
    elif first.exit_code is not None:
        ending = f"exit code {first.exit_code}"
    said = " · ".join(filter(None, (_one_line(first.error), ending)))
    return "  ".join(filter(None, (moment, said)))


def _render_others(verdict: Verdict) -> str:
    said = []
    if alike := len(verdict.ranks) - 1 if verdict.ranks else 0:
        said.append(f"{count(alike, 'other rank')} failed of the same")
    if verdict.stopped:
        said.append(f"{count(len(verdict.stopped), 'rank')} ended because of it")
    return " · ".join(said)


def _one_line(text: str) -> str:
    return hide_secrets(" ".join(strip_controls(text).split()))
