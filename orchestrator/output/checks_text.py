"""Findings for people: one table nodes x checks, below it each problem with its remedy; and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.noderanges import fold_names
from orchestrator.output.wording import strip_controls
from orchestrator.values import Finding, Node, Status

MARKS: Mapping[Status, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "warn": ("warn", "yellow"),
    "fail": ("FAIL", "bold red"),
    "skip": ("skip", "dim"),
    "unknown": ("?", "yellow"),
}
WORST: Sequence[Status] = ("fail", "unknown", "warn", "skip", "ok")
MOST_ROWS = 16
"""More nodes than this: only those with a problem get a row."""


def is_ready(findings: Iterable[Finding]) -> bool:
    """Tell whether a run may start: nothing fails."""
    return all(finding.status != "fail" for finding in findings)


def render_checks(nodes: Sequence[Node], findings: Sequence[Finding]) -> RenderableType:
    """Render the table, the problems with their remedies, and one closing line."""
    parts: list[RenderableType] = [_render_table(nodes, findings)]
    problems = _render_problems(nodes, findings)
    if problems:
        parts += [Text(), problems]
    return Group(*parts, Text(), _render_summary(nodes, findings))


def checks_document(nodes: Sequence[Node], findings: Sequence[Finding]) -> dict[str, Any]:
    """Build the JSON document of a check."""
    return {
        "schema": 1,
        "ready": is_ready(findings),
        "nodes": [
            {
                "node": node.name,
                "node_rank": node_rank,
                "findings": [_finding_document(finding) for finding in findings if finding.node_rank == node_rank],
            }
            for node_rank, node in enumerate(nodes)
        ],
        "cluster": [_finding_document(finding) for finding in findings if finding.node_rank is None],
    }


def _finding_document(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "status": finding.status,
        "detail": finding.detail,
        "remedy": finding.remedy,
    }


def _render_table(nodes: Sequence[Node], findings: Sequence[Finding]) -> RenderableType:
    checks = list(dict.fromkeys(finding.check for finding in findings))
    cells = _worst_of(findings)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("node", no_wrap=True)
    for check in checks:
        table.add_column(check, overflow="fold")
    hidden = 0
    for node_rank, node in enumerate(nodes):
        row = [cells.get((node_rank, check)) for check in checks]
        if len(nodes) > MOST_ROWS and not {"fail", "warn", "unknown"} & set(row):
            hidden += 1
            continue
        table.add_row(Text(f"{node_rank} {node.name}"), *map(_render_mark, row))
    together = [cells.get((None, check)) for check in checks]
    if any(together):
        table.add_row(Text("together"), *map(_render_mark, together))
    if hidden:
        return Group(table, Text(f"{hidden} of {len(nodes)} nodes have no problem and no row here", "dim"))
    return table


def _worst_of(findings: Sequence[Finding]) -> dict[tuple[int | None, str], Status]:
    worst: dict[tuple[int | None, str], Status] = {}
    for finding in findings:
        key = (finding.node_rank, finding.check)
        worst[key] = min(worst.get(key, "ok"), finding.status, key=WORST.index)
    return worst


def _render_mark(status: Status | None) -> Text:
    return Text(*MARKS[status]) if status else Text("")


def _render_problems(nodes: Sequence[Node], findings: Sequence[Finding]) -> Text:
    folded: dict[tuple[Status, str, str, str], list[int | None]] = {}
    for finding in sorted(findings, key=lambda finding: WORST.index(finding.status)):
        if finding.status != "ok":
            key = (finding.status, finding.check, finding.detail, finding.remedy)
            folded.setdefault(key, []).append(finding.node_rank)
    text = Text()
    for (status, check, detail, remedy), ranks in folded.items():
        if text:
            text.append("\n")
        word, style = MARKS[status]
        text.append(f"{word if status != 'unknown' else 'unknown'} ", style)
        text.append(f"{check} · {_name_nodes(nodes, ranks)}", "bold")
        text.append(f" · {strip_controls(detail)}" if detail else "")
        text.append("".join(f"\n     {line}" for line in remedy.splitlines()), "cyan")
    return text


def _name_nodes(nodes: Sequence[Node], ranks: Sequence[int | None]) -> str:
    named = dict.fromkeys(rank for rank in ranks if rank is not None)
    if not named:
        return "together"
    if len(named) == len(nodes) > 1:
        return f"all {len(nodes)} nodes"
    return fold_names(tuple(nodes[rank].name for rank in named))


def _render_summary(nodes: Sequence[Node], findings: Sequence[Finding]) -> Text:
    counts = {status: sum(finding.status == status for finding in findings) for status in WORST}
    rest = [f"{counts[status]} {status}" for status in ("fail", "unknown", "warn", "skip") if counts[status]]
    ready = is_ready(findings)
    size = f"{len(nodes)} node" + ("" if len(nodes) == 1 else "s")
    word = ("READY", "bold green") if ready else ("NOT READY", "bold red")
    return Text.assemble(word, f" · {' · '.join([size, *rest])}")
