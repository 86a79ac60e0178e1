"""The standard library's dataclass with less to make: it writes out and compiles six methods a class, here only one.

A command of ours loads more than a hundred such classes, and that took a quarter of its start. Only `__init__` is
compiled; the others are written once, below. That a frozen one is not changed is seen to by the type checker alone.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(kind: type | None = None, /, *, frozen: bool = False, **options: Any) -> Any:
        """Make a class one, as `dataclasses.dataclass` does, for all that looks at its fields."""

        def make(kind: type) -> type:
            _give_methods(dataclasses.dataclass(repr=False, eq=False, **options)(kind), frozen=frozen)
            return kind

        return make if kind is None else make(kind)


def _give_methods(kind: Any, *, frozen: bool) -> None:
    names = [one.name for one in dataclasses.fields(kind) if one.compare]
    values = attrgetter(*names) if names else type

    def equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def digest(self: Any) -> int:
        return hash(values(self))

    for name, method in {"__eq__": equal, "__repr__": _show, "__hash__": digest if frozen else None}.items():
        # What a class writes itself stands; of one that writes only an __eq__, Python says that its __hash__ is None.
        if vars(kind).get(name) is None:
            setattr(kind, name, method)


def _show(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"
