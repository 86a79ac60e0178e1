"""Frozen values out of JSON by their annotations, and back: as strict as JSON is, a text is never a number."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
Parse = Callable[[Any], Any]
EXPECTED = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


class OddValueError(ValueError):
    """A value that is not of the kind that it has to be."""

    def __init__(self, expected: str, value: object) -> None:
        super().__init__(expected, value)
        self.expected = expected
        self.value = value
        self.place = ""
        """Names and numbers on the way to it, with dots between."""

    def __str__(self) -> str:
        return f"{self.place}: expected {self.expected}, not {self.value!r}"


def from_json(kind: type[T], raw: Any) -> T:
    """Build a value of a dataclass; what the JSON holds beside its fields is left alone.

    Raises:
        OddValueError: a value of another kind, or none where there has to be one.
    """
    value: T = _parser(typing.cast("Any", kind))(raw)
    return value


def to_json(value: Any) -> Any:
    """Build what JSON holds of a value."""
    if isinstance(value, str | int | float | None):
        return value
    if is_dataclass(value):
        return {name: to_json(getattr(value, name)) for name in _names(typing.cast("Any", type(value)))}
    if isinstance(value, Mapping):
        return {key: to_json(inner) for key, inner in value.items()}
    return [to_json(inner) for inner in value]


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


@cache
def _parser(kind: Any) -> Parse:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _of_dataclass(kind)
    if origin in (typing.Union, types.UnionType):
        (other,) = (_parser(one) for one in inner if one is not types.NoneType)
        return lambda raw: None if raw is None else other(raw)
    if origin is typing.Literal:
        return _of_words(inner)
    if origin is tuple:
        return _of_list(_parser(inner[0])) if inner[1:] == (...,) else _of_row([_parser(one) for one in inner])
    if origin is not None and issubclass(origin, Mapping):
        return _of_mapping(_parser(inner[1]))
    return _of_plain(kind)


def _of_plain(kind: type) -> Parse:
    def parse(raw: Any) -> Any:
        if type(raw) is kind:
            return raw
        if kind is float and type(raw) is int:
            return float(raw)
        raise OddValueError(EXPECTED[kind], raw)

    return parse


def _of_words(words: tuple[Any, ...]) -> Parse:
    def parse(raw: Any) -> Any:
        if raw in words and type(raw) is type(words[words.index(raw)]):
            return raw
        raise OddValueError(" or ".join(map(str, words)), raw)

    return parse


def _within(place: object, parse: Parse, raw: Any) -> Any:
    try:
        return parse(raw)
    except OddValueError as error:
        error.place = f"{place}.{error.place}" if error.place else str(place)
        raise


def _of_list(inner: Parse) -> Parse:
    def parse(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, list | tuple):
            raise OddValueError("a list", raw)
        return tuple(_within(number, inner, one) for number, one in enumerate(raw))

    return parse


def _of_row(inners: list[Parse]) -> Parse:
    def parse(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, list | tuple) or len(raw) != len(inners):
            raise OddValueError(f"a list of {len(inners)}", raw)
        return tuple(_within(number, inner, raw[number]) for number, inner in enumerate(inners))

    return parse


def _of_mapping(inner: Parse) -> Parse:
    def parse(raw: Any) -> dict[str, Any]:
        if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
            raise OddValueError("an object", raw)
        return {key: _within(key, inner, one) for key, one in raw.items()}

    return parse


def _of_dataclass(kind: Any) -> Parse:
    hints = typing.get_type_hints(kind)
    parsers = {one.name: _parser(hints[one.name]) for one in fields(kind)}
    needed = [one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING]

    def parse(raw: Any) -> Any:
        if isinstance(raw, kind):
            return raw
        if not isinstance(raw, Mapping):
            raise OddValueError("an object", raw)
        values = {name: _within(name, parser, raw[name]) for name, parser in parsers.items() if name in raw}
        for name in needed:
            if name not in values:
                raise OddValueError(f"{name} in it", raw)
        return kind(**values)

    return parse
