"""Small pieces of text that several pages share."""

from __future__ import annotations

import re
from pathlib import Path

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""One character that is no text, or turns the direction of it: what makes a line worth a closer look."""

_SEQUENCE = re.compile(
    r"(?P<color>\x1b\[[0-9;:]*m)"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # cursor moves, erasing
    r"|\x1b[\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)?"  # window titles, links, device strings
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def strip_controls(text: str) -> str:
    """Remove what could move the cursor or colour the page: text from a node is nobody's instruction to a terminal."""
    return _SEQUENCE.sub("", text) if CONTROL.search(text) else text


_SECRET = re.compile(
    r"(?<=//)[^/@\s]+(?=@)|(?<=bearer )[\w.~+/=-]{8,}"  # who logs in, within a URL or a header
    r"|\b(?:hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abp]-)[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"
    r"""|(?:(?<=token=)|(?<=key=)|(?<=secret=)|(?<=password=)|(?<=passwd=))["']?(?![\d.]+\b)[^\s"',;)]{8,}""",
    re.IGNORECASE,
)


def hide_secrets(text: str) -> str:
    """Hide what looks like a key, a token or a password: a page is what people pass on."""
    return _SECRET.sub("***", text)


def keep_colors(text: str) -> str:
    """Remove everything that strip_controls removes, except colours."""
    return _SEQUENCE.sub(lambda match: match["color"] or "", text)


def count(number: int, noun: str) -> str:
    """Write a number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def render_size(size: int) -> str:
    """Render a number of bytes in the largest unit that it fills."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"


def render_duration(duration_s: float) -> str:
    """Render a duration in its two largest units."""
    if duration_s < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{duration_s:.1f}s" if duration_s < 10 else f"{int(duration_s)}s"  # noqa: PLR2004 - two digits
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02d}h"
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {seconds:02d}s"


def render_held(gpu: int, held_mib: int) -> str:
    """Say that a GPU did not get its memory back."""
    return f"GPU {gpu} still holds {held_mib:,} MiB more than before the run"


def shorten_path(path: Path, cwd: Path) -> str:
    """Write a path as one would type it: relative where it lies below the folder that one is in."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) and path != cwd else str(path)
