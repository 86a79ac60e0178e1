"""One fault as a value: what happens, what a user sees of it, and how a test makes it happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster import Completed

    from .case import Case


class Others(StrEnum):
    """What the nodes that the fault did not strike do meanwhile; `check_others` asserts it."""

    GO_ON = "go on, and end well"
    STOPPED = "are stopped: TERM, grace, KILL"
    ON_UNTIL_TOLD = "run on until then"
    NOT_STARTED = "were never started"


class Logs(StrEnum):
    """What of the rank files is on the launch host; `check_logs` asserts it."""

    EQUAL = "every byte"
    BEGINNING = "up to the moment when the node was heard last"
    HERE_ALONE = "what came before; node 2 has nothing of it any more"
    NONE = "no run, no logs"


@dataclass(frozen=True)
class First:
    """The first failure that the verdict names."""

    node_rank: int
    rank: int | None = None
    error: str = ""
    """A part of its words."""


def ends(case: Case) -> Completed:
    """Wait for the end that the launcher finds by itself."""
    return case.launcher.wait(90)


def nothing(case: Case) -> None:
    """Leave everything as it is."""
    del case


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row of docs/faults.md, and the test that makes it."""

    id: str
    happens: str
    """One sentence that a user understands."""
    says: tuple[str, ...]
    """What stands on the screen; {node1} is the first node's address."""
    state: str
    """How the run ended; "" where none was started."""
    exit_code: int
    others: Others
    do: str
    """What a user does next."""
    inject: Callable[[Case], None]
    never: tuple[str, ...] = ()
    """What must not be said: it would be untrue."""
    first: First | None = None
    logs: Logs = Logs.EQUAL
    note: str = ""
    """What else the reader of the page has to know, above all where the fault is pretended."""
    ending: Callable[[Case], Completed] = ends
    """Brings the run to its end; by default that is left to the fault."""
    before: Callable[[Case], None] = nothing
    """Prepares the nodes before the launch."""
    also: Callable[[Case], None] = nothing
    """Asserts what only this row promises."""
    setup: str = ""
    """What every rank does first."""
    act: str = "pass"
    """What a rank does once the test tells it to."""
    nodes: tuple[int, ...] = (1, 2)
    processes: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of launch: beside a short grace."""
    flows: bool = True
    """The run comes up, and lines of every rank arrive before the fault."""
    detached: bool = False
    """Launched with --detach: its controller is in the background."""
    fresh: bool = False
    """The nodes are spoilt afterwards."""
    real_torch: bool = False
    """Real torchrun; the ranks meet in a collective of gloo between their lines."""
    long: bool = False
    marks: tuple[Any, ...] = ()
    """Further marks of pytest, such as an expected failure."""
