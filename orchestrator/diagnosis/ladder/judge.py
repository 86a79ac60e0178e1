"""Judges a run that ended badly: the first rung of the ladder that holds says which rank broke first, and why."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.diagnosis.case import Case, Judgement
from orchestrator.diagnosis.ladder.agents import by_agent_cause, by_lost_node, by_session
from orchestrator.diagnosis.ladder.facts import Facts
from orchestrator.diagnosis.ladder.own import by_last_line, by_own_end
from orchestrator.diagnosis.ladder.progress import by_oddness, by_watchdog
from orchestrator.diagnosis.ladder.proof import by_kernel, by_naming
from orchestrator.diagnosis.ladder.setup import by_setup
from orchestrator.diagnosis.ladder.waits import (
    by_absence,
    by_keys,
    by_lateness,
    by_minority,
    by_silence,
    by_success,
    undecided,
)

RUNGS: tuple[Callable[[Facts], Judgement | None], ...] = (
    by_kernel,
    by_naming,
    by_own_end,
    by_oddness,
    by_setup,
    by_agent_cause,
    by_lost_node,
    by_session,
    by_last_line,
    by_absence,
    by_watchdog,
    by_silence,
    by_lateness,
    by_minority,
    by_keys,
    by_success,
)


def judge(case: Case) -> Judgement:
    """Say what the evidence says."""
    facts = Facts(case)
    for rung in RUNGS:
        judgement = rung(facts)
        if judgement is not None:
            return judgement
    return undecided(facts)
