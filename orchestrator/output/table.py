"""Columns of text: what rich.table does, without blanks at the ends of lines and without breaking a path."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

GAP = 2
"""Blanks between two columns."""


def align_cells(rows: Sequence[Sequence[Text]]) -> list[Text]:
    """Align the cells of rows of equal length, one line a row; the last column is as long as it is."""
    widths = [max(cell.cell_len for cell in column) + GAP for column in zip(*rows, strict=True)]
    lines = []
    for cells in rows:
        line = Text(no_wrap=True, overflow="ignore")
        for cell, size in zip(cells, widths, strict=True):
            line.append_text(cell).append(" " * (size - cell.cell_len))
        line.rstrip()
        lines.append(line)
    return lines
