"""Globs of names, as ours are: with a star at the start or the end, or none; the module fnmatch brings regular expressions."""

from __future__ import annotations

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Sequence


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a name fits one of some globs."""
    return any(fits(name, pattern) for pattern in patterns)


def fits(name: str, pattern: str) -> bool:
    """Tell whether a name fits a glob."""
    middle = pattern.strip("*")
    if pattern.startswith("*"):
        return middle in name if pattern.endswith("*") else name.endswith(middle)
    return name.startswith(middle) if pattern.endswith("*") else name == middle
