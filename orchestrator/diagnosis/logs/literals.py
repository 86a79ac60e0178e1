"""Finds the plain words without which an expression cannot match: to look for them first is a hundred times as fast."""

from __future__ import annotations

import re
from collections.abc import Iterator

SHORTEST = 3
"""Shorter words stand in too many lines to be worth a look."""
_QUANTIFIER = re.compile(r"[*?]\??|\+\??|\{(?P<least>\d*)(?:,\d*)?\}\??")
_GROUP = re.compile(r"\?P<\w+>|\?:|\?=|\?<?!|\?<=")
_NO_MATCH = ("?!", "?<!")
_PLAIN_ESCAPES = frozenset(".^$*+?{}[]\\|()/-#'\"<>:=@&,%!~ `")


def find_literals(pattern: str) -> tuple[str, ...]:
    """Find words of which at least one stands in every match; empty where there are none, or case does not count."""
    if pattern.startswith("(?i"):
        return ()
    return tuple(sorted(_of_choices(pattern) or ()))


def _of_choices(pattern: str) -> frozenset[str] | None:
    found: set[str] = set()
    for branch in _split_branches(pattern):
        words = _of_branch(branch)
        if words is None:
            return None
        found |= words
    return frozenset(found)


def _of_branch(branch: str) -> frozenset[str] | None:
    """Of the words and groups of one branch take those that are the least common."""
    best: frozenset[str] | None = None
    for words in _parts(branch):
        if min(map(len, words)) < SHORTEST:
            continue
        if best is None or (min(map(len, words)), -len(words)) > (min(map(len, best)), -len(best)):
            best = words
    return best


def _parts(branch: str) -> Iterator[frozenset[str]]:
    """Give every run of plain characters, and the words of every group that cannot be left out."""
    run = ""
    at = 0
    while at < len(branch):
        end = _token_end(branch, at)
        token = branch[at:end]
        quantifier = _QUANTIFIER.match(branch, end)
        at = quantifier.end() if quantifier else end
        optional = quantifier is not None and (quantifier[0][0] in "*?" or quantifier["least"] in ("", "0"))
        plain = _plain(token)
        if plain and quantifier is None:
            run += plain
            continue
        if plain and not optional:
            run += plain
        if run:
            yield frozenset({run})
            run = ""
        if token.startswith("(") and not optional and (words := _of_group(token)) is not None:
            yield words
    if run:
        yield frozenset({run})


def _of_group(token: str) -> frozenset[str] | None:
    kind = _GROUP.match(token, 1)
    if kind is not None and kind[0] in _NO_MATCH:
        return None
    return _of_choices(token[kind.end() if kind else 1 : -1])


def _plain(token: str) -> str:
    if token.startswith("\\"):
        return token[1] if token[1] in _PLAIN_ESCAPES else ""
    return "" if token[0] in ".^$([" else token


def _token_end(pattern: str, at: int) -> int:
    if pattern[at] == "\\":
        return at + 2
    if pattern[at] == "[":
        end = at + (3 if pattern.startswith("[^", at) else 2)
        while pattern[end - 1] != "]" or end - 1 == at:
            end += 2 if pattern[end - 1] == "\\" else 1
        return end
    if pattern[at] != "(":
        return at + 1
    depth, end = 0, at
    while True:
        if pattern[end] == "(":
            depth += 1
        elif pattern[end] == ")":
            depth -= 1
            if depth == 0:
                return end + 1
        end = end + 1 if pattern[end] in "()" else _token_end(pattern, end)


def _split_branches(pattern: str) -> Iterator[str]:
    start = at = 0
    while at < len(pattern):
        if pattern[at] == "|":
            yield pattern[start:at]
            start = at + 1
        at = _token_end(pattern, at)
    yield pattern[start:]
