"""Leaves out what a library imports at its head and we never use: some of it takes longer to load than all that we do."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class StandIn(ModuleType):
    """In the place of a module while another one imports it: every name in it is a class, and none can be used."""

    def __getattr__(self, name: str) -> Any:
        """Make the class that somebody imports."""
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> Any:
            raise ImportError(f"{self.__name__}.{name} was left out: see orchestrator/light_imports.py")

        return type(name, (), {"__new__": refuse})


@contextmanager
def left_out(*names: str, **with_names: Any) -> Iterator[None]:
    """Leave modules out of what is imported meanwhile; whoever imports them afterwards gets them.

    Args:
        names: The modules; one that is there already stays.
        with_names: What their users call while they are imported.
    """
    absent = [name for name in names if name not in sys.modules]
    for name in absent:
        sys.modules[name] = StandIn(name)
        vars(sys.modules[name]).update(with_names)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
