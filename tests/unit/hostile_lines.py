"""Makes lines that an expression nearly matches in as many ways as there are: what costs it the most time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

_parser: Any = re._parser  # type: ignore[attr-defined]
_CLASSES = {"CATEGORY_SPACE": " ", "CATEGORY_DIGIT": "1", "CATEGORY_WORD": "a"}
ANYTHING = "a"


def build_hostile_lines(pattern: str, longest: int) -> Iterator[str]:
    """Give every part of an expression again and again, behind what has to stand before it, and never an end."""
    tree = _parser.parse(pattern)
    whole = "".join(map(_sample, tree))
    for filler in (
        " ",
        "1",
        "a",
        "/",
        "'",
        " 1",
        "1 ",
        "a ",
        "a.",
        "=A1",
        whole,
        whole + " ",
        whole[: len(whole) * 2 // 3],
    ):
        yield (filler * longest)[:longest]
    for before, body in _find_repeats(tree, ""):
        yield (before + body * longest)[:longest]
        yield ((before + body) * longest)[:longest]
        yield ((before + body + " ") * longest)[:longest]


def _find_repeats(tree: Iterable[Any], before: str) -> Iterator[tuple[str, str]]:
    for node in tree:
        kind, value = str(node[0]), node[1]
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            body = "".join(map(_sample, value[2]))
            if body:
                yield before, body
            yield from _find_repeats(value[2], before)
        elif kind == "SUBPATTERN":
            yield from _find_repeats(value[3], before)
        elif kind == "BRANCH":
            for branch in value[1]:
                yield from _find_repeats(branch, before)
        before += _sample(node)


def _sample(node: Any) -> str:
    """Give the shortest text that a part of an expression matches, or nearly."""
    kind, value = str(node[0]), node[1]
    if kind == "LITERAL":
        return chr(value)
    if kind == "IN":
        return _sample_of_set(value)
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        least: int = value[0]
        return "".join(map(_sample, value[2])) * max(1, least)
    if kind == "SUBPATTERN":
        return "".join(map(_sample, value[3]))
    if kind == "BRANCH":
        return "".join(map(_sample, value[1][0]))
    return ANYTHING if kind in ("ANY", "NOT_LITERAL") else ""


def _sample_of_set(value: Any) -> str:
    kind, first = str(value[0][0]), value[0][1]
    if kind == "LITERAL":
        return chr(first)
    if kind == "RANGE":
        return chr(first[0])
    return _CLASSES.get(str(first), ANYTHING) if kind == "CATEGORY" else ANYTHING
