"""What a rank did when it was told to stop: a rank that never complained is told by nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from orchestrator.diagnosis.case import Case, Judgement
from orchestrator.diagnosis.hang.stacks import parse_stack
from orchestrator.diagnosis.hang.words import WAITING, Telling, tell
from orchestrator.diagnosis.live import Texts

ENOUGH = 2
"""Ranks that gave up before it: each one's time runs from its own call, and one may just have been later."""


def find_telling(texts: Texts, rank: int, node_rank: int) -> Telling | None:
    """Find what its node saw of a rank in the last moment; None where nobody looked, or the look tells nothing."""
    for look in reversed(texts.node_evidence(node_rank).get("looks") or ()):
        for one in look.get("ranks") or ():
            if one.get("rank") != rank:
                continue
            kernel = f"State: {one.get('state') or '?'}\nwchan={one.get('wchan') or ''}\n"
            stack = parse_stack(f"{kernel}{one.get('text') or ''}", rank, node_rank)
            telling = tell(stack) if stack is not None else None
            return telling if telling is not None and telling.kind != "unknown" else None
    return None


def weigh_look(judgement: Judgement, case: Case, telling: Telling | None) -> Judgement:
    """Let what a silent rank was seen doing confirm, or take back, that the others waited for it."""
    if judgement.rule != "silence" or judgement.rank is None:
        return judgement
    gave_up = [story for story in case.ranks if story.failure and story.code and story.rank != judgement.rank]
    if telling is None:
        return judgement if len(gave_up) >= ENOUGH else replace(judgement, confidence="unknown")
    seen = f"{judgement.reason}; it was in {telling.phrase} when it was stopped"
    if telling.kind not in WAITING:
        return replace(judgement, reason=seen)
    places = Counter(story.failure.where for story in gave_up if story.failure and story.failure.where)
    usual = places.most_common(1)[0][0] if places else ""
    if usual and telling.place and usual != telling.place:
        return replace(
            judgement,
            family="MISMATCH",
            cause=f"rank {judgement.rank} was in another collective than the others: {telling.phrase}",
            cause_id="rule.mismatch",
            reason=f"{len(gave_up)} ranks gave up at {usual}; it was in {telling.phrase} when it was stopped",
            remedy="run again with `--env TORCH_DISTRIBUTED_DEBUG=DETAIL`, which names the collective of every rank",
        )
    return replace(
        judgement,
        confidence="unknown",
        cause="all ranks waited for each other in vain",
        cause_id="rule.hang",
        rank=None,
        node_rank=None,
        ranks=(),
        reason=f"rank {judgement.rank} had not given up yet, and waited as well: {telling.phrase}",
        remedy="check the links between the nodes; run again with `--env TORCH_DISTRIBUTED_DEBUG=DETAIL`",
    )
