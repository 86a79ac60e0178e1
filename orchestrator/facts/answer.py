"""Reads the JSON of a node's answer: missing is fine, another type is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from orchestrator.errors import NodeError

T = TypeVar("T")


class Answer:
    """A JSON object from outside: missing is fine, another type is not."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def optional(self, name: str, kind: type[T]) -> T | None:
        """Give a value of one kind; None where there is none."""
        value = self.raw.get(name)
        if kind is float and type(value) is int:
            value = float(value)
        if value is None:
            return None
        if type(value) is not kind:
            raise NodeError(
                what=f"the probe's answer is odd: {name} is {value!r}, not {kind.__name__}",
                where=self.where,
                remedy="run the same command with -vv and report it",
            )
        return value

    def text(self, name: str) -> str:
        """Give a text; empty where there is none."""
        return self.optional(name, str) or ""

    def entries(self, name: str) -> tuple[Answer, ...]:
        """Give a list of objects."""
        return tuple(Answer(entry, self.where) for entry in self.optional(name, list) or [])

    def texts(self, name: str) -> tuple[str, ...]:
        """Give a list of texts."""
        return tuple(str(entry) for entry in self.optional(name, list) or [])

    def numbers(self, name: str) -> tuple[int, ...]:
        """Give a list of whole numbers."""
        return tuple(int(entry) for entry in self.optional(name, list) or [])

    def map(self, name: str, kind: type[T]) -> dict[str, T]:
        """Give an object whose values are of one kind."""
        inner = Answer(self.optional(name, dict) or {}, self.where)
        values = {key: inner.optional(key, kind) for key in inner.raw}
        return {key: value for key, value in values.items() if value is not None}
