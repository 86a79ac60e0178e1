"""One failure as a value: the script, how it is brought about, and what the verdict has to say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .stage import Stage


def nothing(stage: Stage) -> None:
    """Leave everything as it is: the script fails by itself."""
    del stage


@dataclass(frozen=True, kw_only=True)
class Live:
    """One row."""

    id: str
    happens: str
    """One sentence."""
    script: str
    family: tuple[str, ...]
    """The right one first; further ones where the evidence honestly allows them."""
    word: str
    """An expression that the cause has to match, whatever its case."""
    node_rank: int | None
    """None: no node in particular is to blame, the verdict may name any or none."""
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    """Instead of rank: each of these is a right answer, and no rank at all is as well."""
    together: bool = False
    """The ranks fail of the same, and the verdict names all that have ended of it."""
    code: int | None = None
    signal: str | None = None
    knowable: bool = True
    """False: the evidence does not decide it, so the verdict must not be certain."""
    says: str = ""
    """What a line has to hold that the verdict gives as evidence by its number."""
    where: str = ""
    """What the place in the code has to hold that the verdict names."""
    state: str = "failed"
    exit_code: int = 1
    layout: tuple[int, ...] = (1, 1)
    """How many ranks each node has."""
    torch: bool = False
    """Real torchrun and real torch; else the stand-in for torchrun."""
    prepare: Callable[[Stage], None] = nothing
    """Before the launch."""
    inject: Callable[[Stage], None] = nothing
    """Once the launcher runs."""
    mend: Callable[[Stage], None] = nothing
    """After the verdict: what a user would do, so that nothing is left."""
    words: tuple[str, ...] = ()
    """Words of the launch in front of the script."""
    args: tuple[str, ...] = ()
    """Words of the script."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of launch:."""
    lines: Mapping[int, str] = field(default_factory=dict)
    """Words for the line of a node in the list, by its number from 1."""
    fresh: bool = False
    """The nodes are spoilt afterwards."""
    long: bool = False

    @property
    def right_ranks(self) -> tuple[int | None, ...]:
        """The answers that are right."""
        return (*self.ranks, None) if self.ranks else (self.rank,)
