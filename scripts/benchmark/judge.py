"""What had to be reached, and what was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .bench import Must
from .results import Results
from .timing import fold_ratios


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A must and what was measured of it; None: it was not."""

    part: str
    must: Must
    measured: float | None

    @property
    def ok(self) -> bool:
        """It was measured, and it is enough."""
        return self.measured is not None and self.measured <= self.must.at_most


def judge(results: Results, part: str, must: Must) -> Reached:
    """Work out one must: the median of the ratios of each round, a ratio of medians between sizes, or a median."""
    ours = results.find(part, must.case, must.nodes, must.tool, must.metric)
    measured = None
    if ours and must.against:
        theirs = results.find(part, must.case, must.nodes, must.against, must.metric)
        measured = fold_ratios(ours.values, theirs.values) if theirs else None
    elif ours and must.against_nodes:
        fewer = results.find(part, must.case, must.against_nodes, must.tool, must.metric)
        measured = ours.median / fewer.median if fewer else None
    elif ours:
        measured = ours.median
    return Reached(part=part, must=must, measured=measured)


def judge_all(results: Results, part: str, musts: Sequence[Must]) -> list[Reached]:
    """Work out every must of a part."""
    return [judge(results, part, must) for must in musts]


def at_size(must: Must, nodes: int, slack: float = 3) -> Must:
    """The same must for a small test: at other nodes, and with so many times as much allowed."""
    return replace(must, nodes=nodes, at_most=must.at_most * slack)
