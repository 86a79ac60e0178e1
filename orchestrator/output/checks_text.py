"""Findings for people: a table checks x nodes, below it each problem with its remedy; and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.noderanges import fold_names
from orchestrator.output.checks_table import MARKS, WORST, ChecksTable, fold_ranks, group_by_check, is_skipped, worst_of
from orchestrator.output.wording import count, strip_controls
from orchestrator.values import Finding, Node, Status

MOST_NAMES = 6
"""More nodes with the same trouble are told by their node ranks."""


def is_ready(findings: Iterable[Finding], *, strict: bool = False) -> bool:
    """Tell whether a run may start: nothing fails, and where it is strict, nothing warns."""
    bad = ("fail", "warn") if strict else ("fail",)
    return all(finding.status not in bad for finding in findings)


def render_checks(
    nodes: Sequence[Node], findings: Sequence[Finding], *, every: bool = False, strict: bool = False
) -> RenderableType:
    """Render the table, the problems with their remedies, and one closing line; every: also what is well."""
    parts: list[RenderableType] = [ChecksTable(nodes, findings, every)]
    problems = render_problems(nodes, findings, every=every)
    if problems:
        parts += [Text(), problems]
    return Group(*parts, Text(), _render_summary(nodes, findings, every=every, strict=strict))


def render_problems(nodes: Sequence[Node], findings: Sequence[Finding], *, every: bool = False) -> Text:
    """Render what is not as it should be, the worst first; what is said of several nodes stands once."""
    folded: dict[tuple[Status, str, str, str, str], list[int | None]] = {}
    for finding in sorted(findings, key=lambda finding: WORST.index(finding.status)):
        if finding.status not in ("ok", "skip") or (every and finding.status == "skip"):
            told = finding.why + (f"; judged by launch.checks: {finding.reason}" if finding.reason else "")
            key = (finding.status, finding.check, finding.detail, told, finding.remedy)
            folded.setdefault(key, []).append(finding.node_rank)
    text = Text()
    for (status, check, detail, why, remedy), ranks in folded.items():
        if text:
            text.append("\n")
        word, style = MARKS[status]
        text.append({"unknown": "unknown", "skip": "skip"}.get(status, word), style)
        text.append(f" {check}", "bold")
        text.append("".join(f" · {part}" for part in (_name_nodes(nodes, ranks), strip_controls(detail)) if part))
        text.append(f"\n  {strip_controls(why)}" if why else "", "dim")
        text.append("".join(f"\n  → {line}" for line in strip_controls(remedy).splitlines()), "cyan")
    return text


def render_ready(nodes: Sequence[Node], findings: Sequence[Finding]) -> Text:
    """Render one line for nodes on which a run may start."""
    warnings = sum(finding.status == "warn" for finding in findings)
    rest = f", {count(warnings, 'warning')}" if warnings else ""
    return Text.assemble(f"checked {count(len(nodes), 'node')}: ", ("ready", "green"), rest)


def _name_nodes(nodes: Sequence[Node], ranks: Sequence[int | None]) -> str:
    named = list(dict.fromkeys(rank for rank in ranks if rank is not None))
    if not named:
        return ""
    if len(named) == len(nodes) > 1:
        return f"all {len(nodes)} nodes"
    if len(named) == 1:
        return f"node {named[0]} {nodes[named[0]].name}"
    if len(named) > MOST_NAMES:
        return f"{len(named)} nodes, node rank {fold_ranks(named)}"
    return f"nodes {fold_names(tuple(nodes[rank].name for rank in named))}"


def _render_summary(nodes: Sequence[Node], findings: Sequence[Finding], *, every: bool, strict: bool) -> Text:
    ready = is_ready(findings, strict=strict)
    word = ("READY", "bold green") if ready else ("NOT READY", "bold red")
    rows = group_by_check(findings)
    worst = Counter("skip" if is_skipped(row) else worst_of(row) for row in rows.values())
    said = [f"{worst[status]} {status}" for status in ("ok", "warn", "unknown", "fail") if worst[status]]
    if worst["skip"]:
        said.append(f"{worst['skip']} skipped")
    hint = "" if every else " (--all shows them)"
    strictly = " · --strict: a warning counts" if strict and not ready and is_ready(findings) else ""
    return Text.assemble(
        word, f" · {count(len(nodes), 'node')} · {count(len(rows), 'check')}: {', '.join(said)}{hint}{strictly}"
    )
