"""Makes named tuples, as `typing.NamedTuple` does: its module costs as much as a start of Python."""

from __future__ import annotations

from _operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def record(name: str, *fields: str) -> Any:
    """Make a class of tuples whose places have names."""

    def make(kind: Any, *values: Any, **named: Any) -> Any:
        if named or len(values) != len(fields):
            values += tuple(named.pop(field) for field in fields[len(values) :])
            if named or len(values) != len(fields):
                raise TypeError("%s has %s" % (name, ", ".join(fields)))
        return tuple.__new__(kind, values)

    def replace(self: Any, **changes: Any) -> Any:
        return type(self)(**{**dict(zip(fields, self)), **changes})

    def show(self: Any) -> str:
        return "%s(%s)" % (name, ", ".join("%s=%r" % pair for pair in zip(fields, self)))

    body = {field: property(itemgetter(place)) for place, field in enumerate(fields)}
    return type(name, (tuple,), {**body, "__slots__": (), "__new__": make, "__repr__": show, "_replace": replace})
