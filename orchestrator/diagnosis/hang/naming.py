"""Says who: a few ranks by number, many by how many they are; and makes the judgement that names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from orchestrator.diagnosis.case import Confidence, Odd

MOST_NAMED = 4


def name_ranks(ranks: Sequence[int]) -> str:
    """Name a few ranks, or say how many they are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= MOST_NAMED:
        return f"ranks {', '.join(map(str, sorted(ranks)))}"
    low, high = min(ranks), max(ranks)
    return f"ranks {low}-{high}" if high - low + 1 == len(ranks) else f"{len(ranks)} ranks"


def is_are(ranks: Sequence[int]) -> str:
    """Give the verb that goes with some ranks."""
    return "is" if len(ranks) == 1 else "are"


def count_ranks(ranks: Sequence[int], verb: str | None = None) -> str:
    """Say how many wait, or whatever the verb says."""
    one = len(ranks) == 1
    who = f"{len(ranks)} rank" if one else f"{len(ranks)} ranks"
    if verb is None:
        return f"{who} {'waits' if one else 'wait'}"
    return f"{who} {verb}"


def build_odd(
    family: Literal["HANG", "MISMATCH"],
    ranks: tuple[int, ...],
    cause: str,
    confidence: Confidence,
    *,
    rule: Literal["stacks", "flight recorder", "NCCL RAS"] = "stacks",
    where: str = "",
) -> Odd:
    """Build what is said of ranks that hang."""
    return Odd(family=family, ranks=ranks, rule=rule, confidence=confidence, cause=cause, where=where)
