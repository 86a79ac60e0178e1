"""Ranges of node names: node[01-16], node[1,3-5].rack2, rack[1-2]n[1-4]."""

from __future__ import annotations

import re
from itertools import product

MOST_NODES = 4096
"""More names than this from one range is a slip of the finger, not a cluster."""

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")


def split_names(text: str) -> tuple[str, ...]:
    """Split names at commas and white space, but not inside brackets."""
    return tuple(re.findall(r"(?:\[[^\[\]]*\]|[^\s,])+", text))


def expand_range(text: str) -> tuple[str, ...]:
    """Expand every bracketed range of a name, the leftmost slowest; zeros in front are kept.

    Raises:
        ValueError: a bracket without its partner, or something in brackets that is no range.
    """
    choices: list[list[str]] = []
    end = 0
    total = 1
    for found in _BRACKETS.finditer(text):
        choices.extend(([text[end : found.start()]], _expand_brackets(found[1], found[0])))
        total *= len(choices[-1])
        _check_total(total, text)
        end = found.end()
    choices.append([text[end:]])
    if any(bracket in part for parts in choices[::2] for part in parts for bracket in "[]"):
        raise ValueError(f"a bracket without its partner in {text!r}")
    return tuple("".join(parts) for parts in product(*choices))


def _expand_brackets(inner: str, shown: str) -> list[str]:
    names: list[str] = []
    for part in inner.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"{shown} is no range: expected something like [01-16] or [1,3-5]")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise ValueError(f"{shown} runs backwards")
        _check_total(int(last) - int(first) + 1, shown)
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        names.extend(str(number).zfill(width) for number in range(int(first), int(last) + 1))
    return names


def _check_total(total: int, shown: str) -> None:
    if total > MOST_NODES:
        raise ValueError(f"{shown} stands for more than {MOST_NODES} nodes")


def fold_names(names: tuple[str, ...]) -> str:
    """Fold names that differ in their last number into ranges, in the order of first sight."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        found = re.fullmatch(r"(.*?)([0-9]+)([^0-9.:]*)", name, re.DOTALL)
        foldable = found is not None and not any(mark in name for mark in "[]") and not _is_address(name)
        if found is None or not foldable or len(found[2]) > 12:  # noqa: PLR2004 - what _PART reads back
            groups[name, "", -1] = []
            continue
        width = len(found[2])
        groups.setdefault((found[1], found[3], width), []).append(int(found[2]))
    return ",".join(_fold_group(*key, numbers) for key, numbers in groups.items())


def _is_address(name: str) -> bool:
    return re.fullmatch(r"[0-9.]+(:[0-9]+)?|[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*", name) is not None


def _fold_group(prefix: str, suffix: str, width: int, numbers: list[int]) -> str:
    if width < 0:
        return prefix
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs]
    inner = ",".join(parts)
    return f"{prefix}[{inner}]{suffix}" if len(numbers) > 1 else f"{prefix}{inner}{suffix}"
