"""What a check is: a name, what it is for, and one pure function that judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from orchestrator.checks.seen import Seen
from orchestrator.checks.thresholds import THRESHOLDS
from orchestrator.facts import Facts, Survey
from orchestrator.light_dataclass import dataclass
from orchestrator.settings import Settings
from orchestrator.values import Node

OneNode = Callable[[Node, Facts, Settings], Seen]
AllNodes = Callable[[Sequence[Node], Sequence[Facts], Settings], Sequence[Seen]]
Whole = Callable[[Sequence[Node], Sequence[Facts], Survey, Settings], Sequence[tuple[int | None, Seen]]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check; exactly one of its three functions is given."""

    name: str
    looks_at: str
    why: str
    """What would happen at the launch, in a line; shown with each problem."""
    fails: str = ""
    """When it fails; {name} stands for a threshold."""
    warns: str = ""
    level: Literal[0, 1, 2] = 0
    headline: bool = False
    """What it finds is worth a row also where all is well."""
    each: OneNode | None = None
    """Judges each node alone."""
    across: AllNodes | None = None
    """Compares the nodes by their facts: one answer a node."""
    whole: Whole | None = None
    """Judges what was measured between nodes: answers for a node rank, or None for all together."""

    @property
    def thresholds(self) -> Mapping[str, float]:
        """Its figures, which launch.checks can change."""
        return THRESHOLDS.get(self.name, {})

    def judge(
        self, nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings
    ) -> list[tuple[int | None, Seen]]:
        """Give what was seen, by node rank; None stands for all nodes together."""
        if self.whole is not None:
            return list(self.whole(nodes, facts, survey, settings))
        if self.each is not None:
            seen = [self.each(node, fact, settings) for node, fact in zip(nodes, facts, strict=True)]
        else:
            assert self.across is not None
            seen = list(self.across(nodes, facts, settings))
        return [(fact.node_rank, one) for fact, one in zip(facts, seen, strict=True)]
