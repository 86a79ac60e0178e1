"""Checks over what a level has measured: where it has not, they say why, each for every node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from orchestrator.checks.check import Whole
from orchestrator.checks.seen import Seen, skip
from orchestrator.facts import Facts, Survey
from orchestrator.facts.collectives import CollectivesFacts
from orchestrator.facts.load import LoadFacts
from orchestrator.settings import Settings
from orchestrator.values import Node

Answers = list[tuple[int | None, Seen]]
Found = TypeVar("Found", CollectivesFacts, LoadFacts)


def over_collectives(judge: Callable[[Sequence[Node], Sequence[Facts], CollectivesFacts, Settings], Answers]) -> Whole:
    """Make a judge of level 1 a check of the whole survey."""
    return _over(lambda survey: survey.collectives, judge)


def over_load(judge: Callable[[Sequence[Node], Sequence[Facts], LoadFacts, Settings], Answers]) -> Whole:
    """Make a judge of level 2 a check of the whole survey."""
    return _over(lambda survey: survey.load, judge)


def _over(
    part: Callable[[Survey], Found | None],
    judge: Callable[[Sequence[Node], Sequence[Facts], Found, Settings], Answers],
) -> Whole:
    def whole(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
        found = part(survey)
        if found is None or found.not_run:
            return [(fact.node_rank, skip("not measured" if found is None else found.not_run)) for fact in facts]
        return judge(nodes, facts, found, settings)

    return whole
