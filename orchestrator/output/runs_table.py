"""The runs that this machine remembers, one line each, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from orchestrator.light_dataclass import dataclass
from orchestrator.noderanges import fold_names
from orchestrator.output.events import render_time
from orchestrator.output.table import align_cells
from orchestrator.output.wording import render_duration, strip_controls

SHOWN_FINISHED = 20
NAMES_WIDTH = 28
"""Folded names that are longer leave their number alone."""
CAUSE_WIDTH = 72
STYLES = {"succeeded": "green", "running": "bold cyan", "failed": "red", "lost": "red", "timed out": "red"}


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """What is known here of one run."""

    run_id: str
    state: str
    finished: bool
    """It was seen to its end."""
    controlled: bool = False
    """A process on this machine watches it."""
    may_live: bool = False
    """Its end was seen, but not from every node."""
    nodes: tuple[str, ...] = ()
    launched: float | None = None
    exit_code: int | None = None
    cause: str = ""
    note: str = ""
    problem: str = ""
    """Why not more is known."""
    experiment: str = ""


def choose_lines(lines: Sequence[RunLine], *, every: bool) -> list[RunLine]:
    """Leave out all but the latest finished runs; what may live is never left out."""
    finished = [line for line in lines if line.finished]
    dropped = set() if every else {id(line) for line in finished[:-SHOWN_FINISHED]}
    return [line for line in lines if id(line) not in dropped]


def render_runs(lines: Sequence[RunLine], now: float) -> Text:
    """Render a table, the newest last: that is the line above the next prompt."""
    heads = [Text(head, "bold") for head in ("RUN", "AGE", "NODES", "STATE")]
    rows = [
        [Text(line.run_id), Text(_render_age(line, now)), Text(_render_nodes(line)), _render_state(line)]
        for line in lines
    ]
    return Text("\n").join(align_cells([heads, *rows]))


def _render_age(line: RunLine, now: float) -> str:
    return render_duration(max(0.0, now - line.launched)) if line.launched is not None else "-"


def _render_nodes(line: RunLine) -> str:
    if not line.nodes:
        return "-"
    names = fold_names(line.nodes)
    return f"{len(line.nodes)}  {names}" if len(names) <= NAMES_WIDTH else str(len(line.nodes))


def _render_state(line: RunLine) -> Text:
    text = Text(line.state, STYLES.get(line.state, ""))
    said = []
    if line.exit_code is not None:
        said.append(f"exit code {line.exit_code}")
    if line.cause and line.state != "succeeded":
        said.append(shorten(line.cause))
    if line.problem:
        said.append(line.problem)
    elif not line.finished and not line.controlled:
        said.append(f"no controller: aorta-launch attach {line.run_id}")
    elif line.may_live:
        said.append(f"something of it may be left: aorta-launch kill {line.run_id}")
    if line.note:
        said.append(f"note: {shorten(line.note)}")
    return text.append("".join(f" · {part}" for part in said), "")


def shorten(text: str) -> str:
    """Give the beginning of a text as one line."""
    line = " ".join(strip_controls(text).split())
    return line if len(line) <= CAUSE_WIDTH else line[: CAUSE_WIDTH - 1].rstrip() + "…"


def runs_document(lines: Sequence[RunLine], now: float, left_out: int) -> dict[str, Any]:
    """Build the JSON document of a list of runs."""
    return {
        "schema": 1,
        "left_out": left_out,
        "runs": [
            {
                "run_id": line.run_id,
                "state": line.state,
                "finished": line.finished,
                "controlled": line.controlled,
                "may_live": line.may_live,
                "nodes": list(line.nodes),
                "launched": None if line.launched is None else render_time(datetime.fromtimestamp(line.launched, UTC)),
                "age_s": None if line.launched is None else round(max(0.0, now - line.launched), 3),
                "exit_code": line.exit_code,
                "cause": line.cause,
                "note": line.note,
                "problem": line.problem,
                "experiment": line.experiment,
            }
            for line in lines
        ],
    }
