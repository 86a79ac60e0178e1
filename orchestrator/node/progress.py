"""What a rank says of itself in its last lines: the last line as a person would read it, and the step it is at."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import List, Optional

LINE_CHARS = 200
STEP_LINES = 20
"""A step is told every few lines, or not at all."""
_STEP = re.compile(
    r"(?<![A-Za-z0-9_-])(?<!max )(?<!total )(?<!per )"
    r"(?:(?:global|train|training|optimizer)[_ -])?(?:step|iter|iteration)"
    r"[\"']?\s*[:=#\[]?\s*\[?\s*"
    r"(\d[\d,_]*)"
    r"(?!\.?\d|\s*%|[A-Za-z_])",
    re.IGNORECASE,
)
_BAR = re.compile(r"\d+%\|[^|]*\|\s*(\d+)/\d+\s*\[")
"""A progress bar of tqdm."""


def read_lines(tail: bytes) -> List[str]:
    """Cut the end of a file into lines as a terminal would show them: of a progress bar its last state."""
    lines = []
    for raw in tail.replace(b"\0", b"").split(b"\n"):
        states = [state for state in raw.split(b"\r") if state.strip()]
        if states:
            lines.append(states[-1].decode("utf-8", "replace").strip())
    return lines


def last_line(lines: List[str]) -> str:
    """Give the last line, not without end."""
    return lines[-1][:LINE_CHARS] if lines else ""


def parse_step(lines: List[str]) -> Optional[int]:
    """Find the step that the last lines tell of; None when they tell of none."""
    for line in reversed(lines[-STEP_LINES:]):
        match = _STEP.search(line) or _BAR.search(line)
        if match is not None:
            return int(re.sub(r"[,_]", "", match.group(1)))
    return None
