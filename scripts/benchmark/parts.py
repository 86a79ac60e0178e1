"""The parts of the benchmark, in the order of the page."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from .bench import Part
from .timing import BenchError

WORDS = ("check", "start", "trips", "push", "streaming", "failure", "kill", "quiet", "supervisor")


def list_words() -> tuple[str, ...]:
    """The parts that there are."""
    return tuple(word for word in WORDS if find_spec(f"{__package__}.{word}"))


def read_part(word: str) -> Part:
    """Take a part out of its module."""
    if word not in list_words():
        raise BenchError(f"there is no part {word!r}; there are: {', '.join(list_words())}")
    part: Part = import_module(f"{__package__}.{word}").PART
    return part
