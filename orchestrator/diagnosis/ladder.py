"""Judges a run that ended badly: the first rung of the ladder that holds says which rank broke first, and why."""

from __future__ import annotations

from orchestrator.diagnosis.case import Case, Judgement


def judge(case: Case) -> Judgement:
    """Say what the evidence says."""
    failed = [story for story in case.ranks if not story.stopped and (story.code or story.signal)]
    own = [story for story in failed if story.signal or not (story.failure and story.failure.consequence)]
    first = min(own or failed, key=lambda story: story.time or 0.0, default=None)
    if first is None:
        return Judgement(family="UNKNOWN", rule="undecided", confidence="unknown", cause="unknown")
    error = first.failure.error if first.failure and not first.signal else ""
    return Judgement(
        family="CODE" if error else "UNKNOWN",
        rule="earliest",
        confidence="likely",
        cause=error or f"exit code {first.code}",
        rank=first.rank,
        node_rank=first.node_rank,
    )
