"""The rungs for runs in which everybody waited: who left early, who never complained, who came late or was elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from orchestrator.diagnosis.case import Judgement, RankStory
from orchestrator.diagnosis.exits import signal_name
from orchestrator.diagnosis.ladder.facts import NO_SIGN, STORE, WAITED, Facts, list_ranks, node_of, show
from orchestrator.diagnosis.logs.speech import is_telling
from orchestrator.values import Evidence

LEAST_FOR_A_MAJORITY = 2
ROOT = 0
"""The rank that a script has do what only one of them does."""
LATE_S = 5.0
"""Ends of ranks that felt the same lie closer together, also by clocks that differ a little."""
_KEY_RANK = re.compile(r"/(?P<rank>\d+)$")


def by_absence(facts: Facts) -> Judgement | None:
    """A rank ended well while all that failed only felt somebody go."""
    left = facts.absent
    if not left or not facts.victims or len(left) > len(facts.case.ranks) // 2:
        return None
    first = min(left, key=lambda story: (story.time if story.time is not None else 0.0, story.rank))
    return Judgement(
        family="EARLY_EXIT",
        rule="absence",
        confidence="likely",
        cause=f"{list_ranks(story.rank for story in left)} left with exit code 0 while the others went on",
        cause_id="rule.early_exit",
        rank=first.rank,
        node_rank=first.node_rank,
        ranks=tuple(story.rank for story in left),
        reason=f"{list_ranks(story.rank for story in facts.victims)} lost a peer, and of all ranks only this one did not fail",
        evidence=show(first),
        remedy="give every rank as many steps: drop_last, a sampler that pads, or the Join context of DDP",
    )


def by_silence(facts: Facts) -> Judgement | None:
    """All others waited in vain; one never said a word, and was stopped."""
    quiet = [
        story for story in facts.silent if story.stopped or story.runs or story.signal is not None or facts.case.watched
    ]
    if not facts.waiters or not quiet:
        return None
    named = _keyed(facts)
    if len(quiet) > 1 and named in {story.rank for story in quiet}:
        quiet = [story for story in quiet if story.rank == named]
    nodes = {story.node_rank for story in quiet}
    if len(quiet) > 1 and (len(nodes) > 1 or len(quiet) * 2 >= len(facts.case.ranks)):
        return None
    first = min(quiet, key=lambda story: story.rank)
    complained = len(facts.victims)
    alone = len(quiet) == 1
    return Judgement(
        family="HANG",
        rule="silence",
        confidence="likely" if alone else "unknown",
        cause=f"{list_ranks(story.rank for story in quiet)} never came to the collective that all others waited in",
        cause_id="rule.silence",
        rank=first.rank if alone else None,
        node_rank=first.node_rank,
        ranks=tuple(story.rank for story in quiet),
        reason=f"{complained} of {len(facts.case.ranks)} ranks waited in vain; {list_ranks(story.rank for story in quiet)} never complained",
        evidence=(*show(first), *(place for story in facts.waiters[:1] for place in show(story))),
        remedy="look at what that rank did before: data, storage, a lock; the next time `aorta-launch stacks` shows it",
    )


def by_lateness(facts: Facts) -> Judgement | None:
    """All others had waited in vain and gone when one came, and found nobody."""
    waited = [story for story in facts.waiters if story.time is not None]
    others = [story for story in facts.victims if story not in facts.waiters]
    last = max((story.time or 0.0 for story in waited), default=0.0)
    late = [story for story in others if story.time is not None and story.time - last > LATE_S]
    if not late or len(late) >= len(waited) or len(waited) + len(late) < len(facts.case.ranks):
        return None
    first = min(late, key=lambda story: story.rank)
    return Judgement(
        family="HANG",
        rule="lateness",
        confidence="likely",
        cause=f"{list_ranks(story.rank for story in late)} came to the collective when the others had given up",
        cause_id="rule.hang",
        rank=first.rank,
        node_rank=first.node_rank,
        ranks=tuple(story.rank for story in late),
        reason=f"{list_ranks(story.rank for story in waited)} waited in vain, and it failed {(first.time or 0.0) - last:.0f} s later because they were gone",
        evidence=show(first),
        remedy="look at what that rank did in between: data, storage, a lock; the next time `aorta-launch stacks` shows it",
    )


def by_minority(facts: Facts) -> Judgement | None:
    """All failed of the same, but one of them somewhere else in the script."""
    frames = {
        story.rank: story.failure.where for story in facts.victims if story.failure is not None and story.failure.where
    }
    seen = Counter(frames.values())
    if len(seen) <= 1 or not facts.waiters:
        return None
    usual, often = seen.most_common(1)[0]
    odd = sorted(rank for rank, where in frames.items() if where != usual)
    if often < LEAST_FOR_A_MAJORITY or len(odd) >= often:
        return None
    first = facts.by_rank[odd[0]]
    called, by_others = _operations(facts, odd), _operations(facts, frames.keys() - set(odd))
    if called and called == by_others:
        return None
    # The rank that has what all others get calls the same broadcast from a line of its own.
    led = odd == [ROOT] and not (called and by_others)
    there = "at another line" if led else "in another collective"
    return Judgement(
        family="HANG" if led else "MISMATCH",
        rule="minority",
        confidence="unknown" if led else "likely",
        cause=f"{list_ranks(odd)} was {there} than the others",
        cause_id="rule.hang" if led else "rule.mismatch",
        rank=None if led else first.rank,
        node_rank=None if led else first.node_rank,
        ranks=() if led else tuple(odd),
        reason=f"{often} ranks failed at {usual}, {list_ranks(odd)} at {frames[first.rank]}",
        evidence=show(first),
        remedy="run again with `--env TORCH_DISTRIBUTED_DEBUG=DETAIL`, which names the collective of every rank",
    )


def _operations(facts: Facts, ranks: Iterable[int]) -> set[str]:
    """Give the collectives that ranks name in their words."""
    return {op for rank in ranks for hit in facts.by_rank[rank].hits if (op := hit.groups.get("op", ""))}


def _keyed(facts: Facts) -> int | None:
    """Give the first rank whose key in the store the others missed."""
    told = Counter(
        int(found["rank"])
        for story in facts.victims
        for hit in story.hits
        if hit.cause.id == "rdzv.keys" and (found := _KEY_RANK.search(hit.groups.get("keys", "")))
    )
    return told.most_common(1)[0][0] if told else None


def by_keys(facts: Facts) -> Judgement | None:
    """Everybody missed the key of one rank in the store: that rank never came."""
    rank = _keyed(facts)
    if rank is None:
        return None
    story = facts.by_rank.get(rank)
    if story is not None and facts.is_victim(story):
        return None
    node_rank = node_of(facts, rank)
    return Judgement(
        family="RDZV",
        rule="keys",
        confidence="likely" if story is None else "unknown",
        cause=f"rank {rank} never came to the start of the process group",
        cause_id="rdzv.keys",
        rank=rank,
        node_rank=node_rank,
        ranks=(rank,),
        reason="the others waited for its key in the store; there is no word of it",
        evidence=tuple(place for one in facts.victims[:1] for place in show(one)),
        remedy="look at the log of that rank and its node: it failed before, was slow, or was never started",
    )


def by_success(facts: Facts) -> Judgement | None:
    """Every process ended with code 0, or nothing at all tells of a failure or of an end."""
    nodes, ranks = facts.case.nodes, facts.case.ranks
    if facts.case.watched or any(
        story.code or story.signal or facts.words[story.rank].kind != "none" for story in ranks
    ):
        return None
    if any(node.agent_code or node.agent_signal or node.claims or node.lost for node in nodes):
        return None
    if all(node.agent_code == 0 for node in nodes):
        return Judgement(
            family="OK", rule="exits", confidence="certain", cause="", reason="every agent ended with exit code 0"
        )
    if any(is_telling(hit) or hit.cause.role == "cause" for node in nodes for hit in node.hits):
        return None
    return Judgement(
        family="UNKNOWN",
        rule=NO_SIGN,
        confidence="unknown",
        cause="nothing in these logs tells of a failure, or of an end",
        reason="they may be of a run that goes on, or was cut off; how it ended stands elsewhere",
    )


def undecided(facts: Facts) -> Judgement:
    """Say what is known, and blame nobody."""
    first = _earliest(facts)
    evidence: tuple[Evidence, ...] = tuple(place for story in facts.victims[:3] for place in show(story))
    stores = {facts.words[story.rank].cause_id for story in facts.victims} - WAITED
    if facts.victims and stores <= STORE and not facts.waiters:
        return Judgement(
            family="RDZV",
            rule="undecided",
            confidence="unknown",
            cause="the store of the ranks went away or was never there",
            cause_id=min(stores),
            reason=f"{list_ranks(story.rank for story in facts.victims)} lost the store, and nothing tells why",
            evidence=evidence,
            remedy="look at what the rank that keeps the store did, usually rank 0",
        )
    if facts.waiters:
        return Judgement(
            family="HANG",
            rule="undecided",
            confidence="unknown",
            cause="all ranks waited for each other in vain",
            cause_id="rule.hang",
            reason=f"{list_ranks(story.rank for story in facts.waiters)} waited in vain, and nothing tells for whom",
            evidence=evidence,
            remedy="run again with `--env TORCH_DISTRIBUTED_DEBUG=DETAIL` and the flight recorder; check the links between the nodes",
        )
    codes = sorted({node.agent_code for node in facts.case.nodes if node.agent_code})
    known = first is not None and (not facts.is_victim(first) or _failed_alone(facts, first))
    cause = f"ended with exit code {', '.join(map(str, codes))}, and nothing tells why" if codes else "unknown"
    said = [(node, hit) for node in facts.case.nodes for hit in node.hits if hit.cause.role == "cause"]
    if not codes and said:
        cause, evidence = said[-1][1].text, evidence or show(*said[-1])
    lines: tuple[str, ...] = ()
    if first is not None and first.failure is not None:
        lines = (first.failure.error,)
        cause = first.failure.error if known else "ranks lost their peers, and none says why"
    elif first is not None and (first.code or first.signal):
        cause = f"exit code {first.code}" if first.code else f"ended by {signal_name(first.signal)}"
    result = Judgement(
        family="UNKNOWN",
        rule="undecided",
        confidence="unknown",
        cause=cause,
        reason="nothing of what is known tells who broke first",
        evidence=evidence or (show(first) if first else ()),
        last_lines=lines,
    )
    return replace(result, rank=first.rank, node_rank=first.node_rank) if first is not None and known else result


def _failed_alone(facts: Facts, story: RankStory) -> bool:
    """Tell whether nobody else failed, as far as their ends are known: then there is nobody whom it could have lost."""
    others = [one for one in facts.case.ranks if one is not story]
    seen = all(one.code is not None or one.signal is not None or one.runs for one in others)
    return seen and all(one.stopped or one.runs or one.code == 0 for one in others)


def _earliest(facts: Facts) -> RankStory | None:
    failed = [story for story in facts.case.ranks if (story.code or story.signal) and not story.stopped]
    own = [story for story in failed if not facts.is_victim(story)]
    return min(
        own or failed, key=lambda story: (story.time if story.time is not None else 0.0, story.rank), default=None
    )
