"""The standard library's dataclass with less to make: it writes out and compiles six methods a class.

A command of ours loads more than a hundred such classes, and that took a third of its start. Here `__init__` is compiled
when the first object is made, of many never, and the others are written once, below. That a frozen one is not changed is
seen to by the type checker alone.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

MISSING = "__missing__"
"""A name that no field has."""

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(kind: type | None = None, /, *, frozen: bool = False, **options: Any) -> Any:
        """Make a class one, as `dataclasses.dataclass` does, for all that looks at its fields."""

        def make(kind: type) -> type:
            later = not hasattr(kind, "__post_init__")
            dataclasses.dataclass(repr=False, eq=False, init=not later, **options)(kind)
            if later:
                _give_init(kind)
            _give_methods(kind, frozen=frozen)
            return kind

        return make if kind is None else make(kind)


def _give_init(kind: Any) -> None:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it is one
        kind.__init__ = _compile_init(kind)
        kind.__init__(self, *args, **kwargs)

    if "__init__" not in vars(kind):
        kind.__init__ = __init__


def _compile_init(kind: Any) -> Any:
    """Write it as the standard library does."""
    known: dict[str, Any] = {MISSING: dataclasses.MISSING}
    words: dict[bool, list[str]] = {False: [], True: []}
    lines = []
    for one in dataclasses.fields(kind):
        made = one.default_factory is not dataclasses.MISSING
        default = f"__default_{one.name}__"
        known[default] = one.default_factory if made else one.default
        if one.init:
            has_default = made or one.default is not dataclasses.MISSING
            words[one.kw_only is True].append(f"{one.name}={MISSING if made else default}" if has_default else one.name)
        if made and one.init:
            lines.append(f" self.{one.name} = {default}() if {one.name} is {MISSING} else {one.name}")
        elif made or one.init:
            lines.append(f" self.{one.name} = {default + '()' if made else one.name}")
    head = ", ".join(["self", *words[False], *(["*", *words[True]] if words[True] else [])])
    exec(f"def __init__({head}):\n" + ("\n".join(lines) or " pass"), known)  # noqa: S102 - names of our own fields
    init = known["__init__"]
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    return init


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
