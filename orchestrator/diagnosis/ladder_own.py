"""The rungs for ranks that broke by themselves: by a signal, by a cause that is known, by their own exception."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from signal import Signals

from orchestrator.diagnosis.case import Judgement, RankStory
from orchestrator.diagnosis.cause import Family, Hit
from orchestrator.diagnosis.exits import signal_name
from orchestrator.diagnosis.ladder_facts import (
    CRASHES,
    KILL,
    RELATED_S,
    Facts,
    Word,
    blame,
    list_ranks,
    moment,
    show,
    strength,
    told,
)
from orchestrator.diagnosis.scan import remedy_of
from orchestrator.diagnosis.speech import is_telling
from orchestrator.diagnosis.torchrun_words import signal_of

SETTINGS: frozenset[Family] = frozenset({"NET", "CONFIG", "ENV", "PORT", "RDZV", "FABRIC", "SSH", "DEPLOY"})
"""What all ranks were given alike: when all fail of it, none of them is to blame."""


def by_own_end(facts: Facts) -> Judgement | None:
    """The earliest rank that broke by itself: by a signal, by a cause that the catalogue knows, by its own exception."""
    own = [
        (story, word, sure)
        for story in facts.case.ranks
        for word in [facts.words[story.rank]]
        if (sure := strength(facts, story)) > 0
    ]
    if not own:
        return None
    story, word, _ = _first(facts, own)
    alike = [one for one, said, _ in own if said.cause_id == word.cause_id and _same(one, story, said)]
    judgement = _judge_end(facts, story, word, alike)
    everyone = {one.rank for one in facts.case.ranks if one.code != 0}
    if (
        word.kind == "cause"
        and judgement.family in SETTINGS
        and len(alike) > 1
        and {one.rank for one in alike} >= everyone
    ):
        return replace(
            judgement,
            rank=None,
            node_rank=min(one.node_rank for one in alike),
            reason=f"all {len(alike)} ranks failed of it alike",
        )
    return judgement


def _same(one: RankStory, other: RankStory, word: Word) -> bool:
    if word.hit is not None and is_telling(word.hit):
        return True
    return (one.failure.error if one.failure else one.code) == (other.failure.error if other.failure else other.code)


def _first(facts: Facts, own: Sequence[tuple[RankStory, Word, int]]) -> tuple[RankStory, Word, int]:
    if not facts.case.watched:
        # Their clocks differ, and their agents' times are to the second: what is sure comes first.
        return min(
            own, key=lambda one: (-one[2], one[0].stopped, not _is_root(facts, one[0]), moment(one[0]), one[0].rank)
        )
    first = min(own, key=lambda one: (moment(one[0]), one[0].rank))
    if first[2] == 1:
        near = [one for one in own if one[2] > 1 and moment(one[0]) - moment(first[0]) <= RELATED_S]
        return min(near, key=lambda one: (moment(one[0]), one[0].rank), default=first)
    return first


def _is_root(facts: Facts, story: RankStory) -> bool:
    claims = facts.by_node[story.node_rank].claims
    return not claims or any(claim.root and claim.rank == story.rank for claim in claims)


def _judge_end(facts: Facts, story: RankStory, word: Word, alike: Sequence[RankStory]) -> Judgement:
    ended = signal_of(story.code, story.signal)
    others = [one for one in facts.case.ranks if one.rank not in {same.rank for same in alike} and one.code != 0]
    aside = (
        f"; {list_ranks(one.rank for one in others)} only felt it" if others and not _strengths(facts, others) else ""
    )
    ranks = tuple(sorted(one.rank for one in alike))
    if ended == KILL:
        return _judge_kill(facts, story, aside)
    if ended in CRASHES:
        return _judge_crash(facts, story, word, aside)
    if word.kind in ("cause", "own", "hint"):
        sure = word.kind == "cause" and (story.exact or len(own_ranks(facts)) == len(alike))
        reason = f"{list_ranks(ranks)} said it last{aside}"
        judgement = blame(_rule(word), word.hit, story, reason, ranks, sure=sure)
        return replace(judgement, last_lines=() if word.hit else _last_lines(story))
    return Judgement(
        family="CODE",
        rule="exit",
        confidence="likely",
        cause=f"the script ended with exit code {story.code}, without a word",
        cause_id="exit.code",
        rank=story.rank,
        node_rank=story.node_rank,
        ranks=ranks,
        reason=f"its own exit code{aside}",
        evidence=show(story),
        last_lines=_last_lines(story),
    )


def _rule(word: Word) -> str:
    return {"cause": "cause", "hint": "hint"}.get(word.kind, "exception")


def own_ranks(facts: Facts) -> list[RankStory]:
    """List the ranks that broke by themselves."""
    return [story for story in facts.case.ranks if strength(facts, story) > 0]


def _strengths(facts: Facts, stories: Sequence[RankStory]) -> bool:
    return any(strength(facts, story) > 0 for story in stories)


def _last_lines(story: RankStory) -> tuple[str, ...]:
    return (story.failure.error,) if story.failure else ()


def _judge_kill(facts: Facts, story: RankStory, aside: str) -> Judgement:
    exit_word = f"exit code {story.code}" if story.code else "SIGKILL"
    node = facts.by_node[story.node_rank]
    unknown = "" if node.kernel else "; the kernel's log is not at hand, so it may have been for memory"
    return Judgement(
        family="KILLED",
        rule="exit",
        confidence="likely",
        cause="killed by SIGKILL",
        cause_id="exit.kill",
        rank=story.rank,
        node_rank=story.node_rank,
        ranks=(story.rank,),
        reason=f"it ended with {exit_word} and said nothing of its own{unknown}{aside}",
        evidence=show(story),
        remedy="ask the kernel log of that node for `Killed process`; without one, a person or a program did it",
    )


def _judge_crash(facts: Facts, story: RankStory, word: Word, aside: str) -> Judgement:
    del facts
    number = signal_of(story.code, story.signal) or Signals.SIGABRT
    name = signal_name(number)
    if word.kind == "cause" and word.hit is not None:
        if word.hit.cause.id == "gloo.size":
            return _judge_receiver(story, word.hit)
        return blame("exit", word.hit, story, f"it ended by {name} and said so itself{aside}", sure=True)
    family: Family = "SHM" if number == Signals.SIGBUS else "CRASH"
    return Judgement(
        family=family,
        rule="exit",
        confidence="certain" if family == "CRASH" else "likely",
        cause=f"native crash ({name})",
        cause_id=f"exit.{(name or '').removeprefix('SIG').lower()}",
        rank=story.rank,
        node_rank=story.node_rank,
        ranks=(story.rank,),
        reason=f"it ended by {name}{aside}",
        evidence=show(story, word.hit),
        remedy="launch with `--env PYTHONFAULTHANDLER=1` to see where it was",
    )


def _judge_receiver(story: RankStory, hit: Hit) -> Judgement:
    """Gloo aborts the rank that receives: the one that sent too much lives on."""
    cause, remedy, cause_id = told(hit)
    return Judgement(
        family="MISMATCH",
        rule="exit",
        confidence="likely",
        cause=cause,
        cause_id=cause_id,
        reason=f"rank {story.rank} got more or less than it had room for: it is only the receiver, who sent it is not told",
        evidence=show(story, hit),
        remedy=remedy or remedy_of(hit),
    )
