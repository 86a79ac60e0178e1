"""Results as tables in Markdown, which a terminal shows as well: ratios first."""

from __future__ import annotations

from collections.abc import Sequence

from .bench import Series
from .judge import Reached
from .results import Results
from .timing import fold_ratios

OURS = "aorta-launch"
TIMES = "\N{MULTIPLICATION SIGN}"
WHOLE, TENTHS = 100, 10
"""From here on a figure is told to the whole, to a tenth."""


def render_musts(reached: Sequence[Reached]) -> str:
    """Target, measured, reached."""
    rows = [("must reach", "target", "measured", "reached")]
    for one in reached:
        sign = TIMES if one.must.against or one.must.against_nodes else one.must.unit
        target = f"≤ {with_unit(f'{one.must.at_most:g}', sign)}"
        if one.measured is None:
            rows.append((one.must.says, target, "not measured", ""))
        else:
            rows.append((one.must.says, target, with_unit(show(one.measured), sign), "yes" if one.ok else "**no**"))
    return render_rows(rows)


def with_unit(figure: str, unit: str) -> str:
    """A figure and its unit."""
    return f"{figure} {unit}".strip()


def render_part(results: Results, part: str) -> str:
    """A table for every case and metric: nodes down, for each tool ratio and median."""
    texts = []
    found = results.of(part)
    for case in dict.fromkeys(series.case for series in found):
        texts.append(f"**{case}**\n")
        rows = [("nodes", "tool", "aorta-launch ÷ it", *metrics_of(found, case))]
        for nodes in sorted({series.nodes for series in found if series.case == case}):
            rows += render_size(
                [series for series in found if (series.case, series.nodes) == (case, nodes)], rows[0][3:]
            )
        texts.append(render_rows(rows) + "\n")
    return "\n".join(texts)


def metrics_of(found: Sequence[Series], case: str) -> tuple[str, ...]:
    """The metrics of a case, what users wait for first."""
    names = dict.fromkeys(series.metric for series in found if series.case == case)
    return tuple(sorted(names, key=lambda name: name != "seconds"))


def render_size(found: Sequence[Series], metrics: Sequence[str]) -> list[tuple[str, ...]]:
    """The rows of one case at one number of nodes."""
    tools = list(dict.fromkeys(series.tool for series in found))
    cells = {(series.tool, series.metric): series for series in found}
    ours = next((tool for tool in tools if tool.startswith(OURS)), "")
    rows = []
    for tool in tools:
        ratio = ""
        mine, other = cells.get((ours, "seconds")), cells.get((tool, "seconds"))
        if mine and other and not tool.startswith(OURS):
            ratio = show(fold_ratios(mine.values, other.values))
        shown = [show_spread(cells.get((tool, metric))) for metric in metrics]
        rows.append((str(found[0].nodes), tool, ratio, *shown))
    return rows


def show_spread(series: Series | None) -> str:
    """The median, and in brackets the least and the most."""
    if series is None:
        return ""
    low, high = min(series.values), max(series.values)
    return show(series.median) + (f" ({show(low)} to {show(high)})" if high > low else "")


def show(value: float) -> str:
    """A figure with what of it is certain."""
    return f"{value:.0f}" if abs(value) >= WHOLE else f"{value:.2f}" if abs(value) < TENTHS else f"{value:.1f}"


def render_rows(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first one the head."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
