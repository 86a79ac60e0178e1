"""The rungs that know how far each rank came: stacks, flight recorders, NCCL's own watchdogs."""

from __future__ import annotations

import re

from orchestrator.diagnosis.case import Judgement
from orchestrator.diagnosis.ladder.facts import Facts, list_ranks, node_of, show

_ODD_REASONS = {
    "stacks": "told by their stacks",
    "flight recorder": "told by their flight recorders",
    "NCCL RAS": "told by NCCL's own count of launches",
}
# The number of a group is each process's own; its GUID is the same on all ranks.
_GROUPS = (re.compile(r"\bPG GUID (?P<name>\w+)"), re.compile(r"\[PG (?:ID )?(?P<name>\w+)"))


def by_oddness(facts: Facts) -> Judgement | None:
    """Stacks or flight recorders show who does something else than all others."""
    odd = facts.case.odd
    if odd is None:
        return None
    rank = odd.ranks[0] if odd.ranks else None
    return Judgement(
        family=odd.family,
        rule=odd.rule,
        confidence=odd.confidence,
        cause=odd.cause,
        cause_id="rule.hang" if odd.family == "HANG" else "rule.mismatch",
        rank=rank,
        node_rank=node_of(facts, rank),
        ranks=odd.ranks,
        reason=_ODD_REASONS[odd.rule],
        evidence=odd.evidence,
    )


def by_watchdog(facts: Facts) -> Judgement | None:
    """NCCL's watchdogs tell how far each rank came: one that enqueued less than what timed out never came to it."""
    groups: dict[str, dict[int, int]] = {}
    timed_out: dict[str, int] = {}
    for story in facts.case.ranks:
        for hit in story.hits:
            if hit.groups.get("enq", "").isdigit():
                name = _group_of(hit.text)
                came = groups.setdefault(name, {})
                came[story.rank] = min(came.get(story.rank, int(hit.groups["enq"])), int(hit.groups["enq"]))
                if hit.groups.get("seq", "").isdigit():
                    timed_out[name] = min(timed_out.get(name, int(hit.groups["seq"])), int(hit.groups["seq"]))
    for name, came in sorted(groups.items()):
        late = sorted(rank for rank, number in came.items() if number < timed_out.get(name, 0))
        if late and len(late) * 2 <= len(came):
            return _late(facts, late, came, timed_out[name])
    return None


def _group_of(text: str) -> str:
    """Give the name of the process group that a line of NCCL's watchdog is about."""
    return next((found["name"] for expression in _GROUPS if (found := expression.search(text))), "")


def _late(facts: Facts, late: list[int], came: dict[int, int], sequence: int) -> Judgement:
    first = facts.by_rank[min(late, key=lambda rank: (came[rank], rank))]
    others = max(came.values())
    return Judgement(
        family="HANG",
        rule="watchdog",
        confidence="likely",
        cause=f"{list_ranks(late)} never came to collective {sequence}",
        cause_id="rule.hang",
        rank=first.rank,
        node_rank=first.node_rank,
        ranks=tuple(late),
        reason=f"it enqueued {came[first.rank]} collectives, others {others}, and number {sequence} timed out",
        evidence=show(first),
        remedy="look at what that rank did instead: its stack, its data, its disk",
    )
