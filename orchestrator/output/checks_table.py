"""The table of a check: one row a check, one column a node, and what was found where all agree."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from orchestrator.checks.catalogue import CATALOGUE
from orchestrator.light_dataclass import dataclass
from orchestrator.noderanges import fold_names
from orchestrator.output.table import GAP, align_cells
from orchestrator.output.wording import strip_controls
from orchestrator.values import Finding, Node, Status

MARKS: Mapping[Status, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "warn": ("warn", "yellow"),
    "fail": ("FAIL", "bold red"),
    "skip": ("-", "dim"),
    "unknown": ("?", "yellow"),
}
WORST: Sequence[Status] = ("fail", "unknown", "warn", "skip", "ok")
MOST_COLUMNS = 8
"""More nodes than this are folded into one column."""
MOST_NODES = 16
"""Of more nodes only what is not well gets a row."""
HEADLINES = frozenset(check.name for check in CATALOGUE if check.headline)
LEAST_FOUND = 18
"""Narrower than this, what was found is not worth its column: the nodes are folded."""

_NUMBER = re.compile(r"(?<!\S)[+-]?[0-9]+(?:\.[0-9]+)?(?!\S)")
"""A measured number stands by itself; one inside a name, a version or an address does not count."""


@dataclass(frozen=True)
class ChecksTable:
    """What every check said of every node; how it is laid out is decided by the width of the page."""

    nodes: Sequence[Node]
    findings: Sequence[Finding]
    every: bool
    """Every check gets a row, also those that are well everywhere or apply nowhere."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the table out for this width."""
        del console
        rows = group_by_check(self.findings)
        if not self.every:
            few = len(self.nodes) <= MOST_NODES
            rows = {check: row for check, row in rows.items() if is_bad(row) or (few and is_headline(check, row))}
        if not rows:
            return
        heads = [f"{node_rank} {node.name}" for node_rank, node in enumerate(self.nodes)]
        first = max(map(len, rows))
        taken = first + sum(len(head) + GAP for head in heads) + GAP
        wide = len(heads) <= MOST_COLUMNS and options.max_width - taken >= LEAST_FOUND
        for line in _lay_out(rows, heads) if wide else _fold_out(rows, len(heads)):
            line.truncate(options.max_width, overflow="ellipsis")
            yield line


def group_by_check(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Group the findings by their check, in the order in which the checks came."""
    rows: dict[str, list[Finding]] = {}
    for finding in findings:
        rows.setdefault(finding.check, []).append(finding)
    return rows


def is_bad(row: Sequence[Finding]) -> bool:
    """Tell whether a check found anything that is not as it should be, or could not look."""
    return any(finding.status not in ("ok", "skip") for finding in row)


def is_headline(check: str, row: Sequence[Finding]) -> bool:
    """Tell whether what a check found is worth a row also where all is well."""
    return check in HEADLINES and not is_skipped(row)


def is_skipped(row: Sequence[Finding]) -> bool:
    """Tell whether a check applied to no node."""
    return all(finding.status == "skip" for finding in row)


def worst_of(findings: Sequence[Finding]) -> Status:
    """Find the worst status."""
    return min((finding.status for finding in findings), key=WORST.index)


def _lay_out(rows: Mapping[str, Sequence[Finding]], heads: Sequence[str]) -> list[Text]:
    table = [[Text(head, "bold") for head in ("check", *heads, "found")]]
    for check, row in rows.items():
        cells = [[finding for finding in row if finding.node_rank == place] for place in range(len(heads))]
        # What is said of all nodes together stands in the head's column, where the reader's eye begins.
        cells[0] += [finding for finding in row if finding.node_rank is None]
        marks = [Text(*MARKS[worst_of(cell)]) if cell else Text() for cell in cells]
        table.append([Text(check), *marks, Text(fold_found(row))])
    return align_cells(table)


def _fold_out(rows: Mapping[str, Sequence[Finding]], count: int) -> list[Text]:
    table = [[Text(head, "bold") for head in ("check", "1 node" if count == 1 else f"{count} nodes", "found")]]
    table += [[Text(check), _fold_statuses(row), Text(fold_found(row))] for check, row in rows.items()]
    return align_cells(table)


def _fold_statuses(row: Sequence[Finding]) -> Text:
    """Count what is well and name what is not: ok x14, fail 3,7."""
    ranks: dict[Status, list[int]] = {}
    whole = [finding for finding in row if finding.node_rank is None]
    for finding in row:
        if finding.node_rank is not None:
            ranks.setdefault(finding.status, []).append(finding.node_rank)
    parts = [Text(*MARKS[worst_of(whole)])] if whole and (not ranks or worst_of(whole) != "ok") else []
    for status in reversed(WORST):
        if status in ranks:
            word, style = MARKS[status]
            number = f"\N{MULTIPLICATION SIGN}{len(ranks[status])}"
            parts.append(Text(f"{word} {number if status in ('ok', 'skip') else fold_ranks(ranks[status])}", style))
    return Text(" · ").join(parts)


def fold_ranks(ranks: Sequence[int]) -> str:
    """Fold node ranks into ranges: 1-3,7."""
    return fold_names(tuple(f"r{rank}" for rank in ranks)).removeprefix("r").strip("[]")


def fold_found(row: Sequence[Finding]) -> str:
    """Say what was found where all nodes agree; numbers that were measured may differ, then their range is told."""
    details = [" ".join(strip_controls(finding.detail).split()) for finding in row]
    if any(finding.status not in ("ok", "skip") for finding in row) or not all(details):
        return ""
    if len({_NUMBER.sub("#", detail) for detail in details}) > 1:
        return ""
    columns = iter(zip(*(_NUMBER.findall(detail) for detail in details), strict=True))
    return _NUMBER.sub(lambda _: _fold_numbers(next(columns)), details[0])


def _fold_numbers(texts: Sequence[str]) -> str:
    low, high = min(texts, key=float), max(texts, key=float)
    return low if low == high else f"{low}…{high}"
