"""Finds what the catalogue of causes knows in lines of text, in one pass and without trying every expression."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from orchestrator.diagnosis.cause import Cause, Hit
from orchestrator.diagnosis.causes import CAUSES
from orchestrator.diagnosis.logs.literals import find_literals
from orchestrator.light_dataclass import dataclass

LONGEST = 4000
"""What stands further right in a line is not looked at: an expression must not meet a megabyte."""
BLOCK = 256
WHERE_LEVELS_STAND = 120
_WARNING = re.compile(r"^(?:\S+:\d+: )?\w*Warning: |\b(?<!NCCL )(?:WARNING|INFO|DEBUG)\b")
_PREFIX = re.compile(r"^\[rank ?\d+\](?::\s?|\s(?=\[|Traceback|\w*Error))")


MOST_SHAPES = 4096
_SHAPE = bytes.maketrans(b"123456789", b"000000000")
"""Lines of one shape differ in their digits alone, as the steps of a training do."""
_NO_DIGITS = re.compile(r"\(\?P<\w+>|\{\d*,?\d*\}")
"""What of an expression holds digits that it does not look for."""


@dataclass(frozen=True)
class _Rule:
    cause: Cause
    expressions: tuple[re.Pattern[str], ...]
    counts: bool
    """It looks for a certain digit."""


Near = list[tuple[str, list[_Rule]]]
"""Words that a block of lines holds, and the rules of each."""


class Matcher:
    """A catalogue, made ready to be looked for."""

    def __init__(self, causes: Sequence[Cause]) -> None:
        """Sort the expressions by the words that they cannot do without."""
        self._rules: dict[str, list[_Rule]] = {}
        self._always: list[_Rule] = []
        self._dull: set[bytes] = set()
        self._counting: list[bytes] = []
        """Words with digits in them, without these."""
        for cause in causes:
            for pattern in cause.patterns:
                counts = re.search(r"\d", _NO_DIGITS.sub("", pattern)) is not None
                rule = _Rule(cause, (re.compile(pattern),), counts)
                words = find_literals(pattern)
                for word in words:
                    self._rules.setdefault(word, []).append(rule)
                    if any(letter.isdigit() for letter in word):
                        self._counting.append(_shape_of(word))
                if not words:
                    self._always.append(rule)

    def is_dull(self, text: str) -> bool:
        """Tell whether a line of the same shape held nothing."""
        return _shape_of(text) in self._dull

    def note_dull(self, text: str, near: Near) -> None:
        """Note that a line holds nothing, where no other digits could change that."""
        if len(self._dull) < MOST_SHAPES and not self._always:
            shape = _shape_of(text)
            if not any(word in shape for word in self._counting) and not any(
                rule.counts for word, rules in near if word in text for rule in rules
            ):
                self._dull.add(shape)

    def narrow(self, block: str) -> Near:
        """Give the words that stand in a block at all, and the rules of each."""
        return [(word, rules) for word, rules in self._rules.items() if word in block]

    def match(self, text: str, line: int | None, near: Near) -> Iterator[Hit]:
        """Give every cause that one line speaks of; `near` is what its block can hold."""
        seen: set[str] = set()
        rules = [rule for word, rules in near if word in text for rule in rules]
        for rule in (*rules, *self._always):
            if rule.cause.id in seen:
                continue
            for expression in rule.expressions:
                found = expression.search(text)
                if found is not None:
                    seen.add(rule.cause.id)
                    groups = {name: value for name, value in found.groupdict().items() if value is not None}
                    yield Hit(cause=rule.cause, text=text, line=line, groups=groups)
                    break


@cache
def _matchers() -> tuple[Matcher, Matcher]:
    spoken = [cause for cause in CAUSES if cause.role != "confirm"]
    return Matcher(spoken), Matcher([cause for cause in CAUSES if cause.role == "confirm"])


def scan_lines(lines: Iterable[str], *, kernel: bool = False, first: int = 1) -> Iterator[Hit]:
    """Find the hits of lines, one a line, in their order; memory stays bounded."""
    matcher = _matchers()[1 if kernel else 0]
    block: list[str] = []
    number = first
    for line in lines:
        block.append(line)
        if len(block) == BLOCK:
            yield from _scan_block(matcher, block, number)
            number += len(block)
            block = []
    yield from _scan_block(matcher, block, number)


def _scan_block(matcher: Matcher, block: Sequence[str], first: int) -> Iterator[Hit]:
    find = _build_finder(matcher, block)
    for number, line in enumerate(block, start=first):
        hit = find(number, line)
        if hit is not None:
            yield hit


def build_finder(block: Sequence[str]) -> Callable[[int, str], Hit | None]:
    """Prepare for the lines of one block; what it gives finds the cause that a line of it speaks of."""
    return _build_finder(_matchers()[0], block)


def _build_finder(matcher: Matcher, block: Sequence[str]) -> Callable[[int, str], Hit | None]:
    near = matcher.narrow("\n".join(line for line in block if not matcher.is_dull(_cut(line))))

    def find(number: int, line: str) -> Hit | None:
        text = _cut(line)
        if matcher.is_dull(text):
            return None
        hit = max(matcher.match(text, number, near), key=lambda hit: hit.cause.priority, default=None)
        if hit is None:
            matcher.note_dull(text, near)
        elif hit.cause.role == "cause" and _WARNING.search(text[:WHERE_LEVELS_STAND]):
            # It was survived, as far as whoever wrote it knew.
            return replace(hit, cause=replace(hit.cause, role="hint"))
        return hit

    return find


def _shape_of(text: str) -> bytes:
    return text.encode("utf-8", "replace").translate(_SHAPE)


def _cut(line: str) -> str:
    return _PREFIX.sub("", line.rstrip("\r\n")[:LONGEST])


def scan_text(text: str, *, kernel: bool = False) -> tuple[Hit, ...]:
    """Find the hits of a text, one a line, in the order of its lines; they are counted from 1."""
    return tuple(scan_lines(text.split("\n"), kernel=kernel))


_PART = re.compile(r"\[(?P<part>[^\[\]]*\{\w+\}[^\[\]]*)\]")
_NAME = re.compile(r"\{(?P<name>\w+)\}")


def title_of(hit: Hit) -> str:
    """Fill what was found into the title of a cause."""
    return fill(hit.cause.title, hit.groups)


def remedy_of(hit: Hit) -> str:
    """Fill what was found into what there is to do."""
    return fill(hit.cause.remedy, hit.groups)


def fill(text: str, groups: Mapping[str, str]) -> str:
    """Fill groups into their places; a part in square brackets goes with a group that found nothing."""

    def part(found: re.Match[str]) -> str:
        whole = found["part"]
        return whole if all(_value(name, groups) for name in _NAME.findall(whole)) else ""

    filled = _NAME.sub(lambda found: _value(found["name"], groups), _PART.sub(part, text))
    return filled.strip(" :,;")


def _value(name: str, groups: Mapping[str, str]) -> str:
    """Give the value of a group or of one of its twins: name, name2, name3 and so on."""
    for key, value in groups.items():
        if key == name or (key.startswith(name) and key[len(name) :].isdigit()):
            return " ".join(value.split())
    return ""
