"""The rungs for ranks that broke by themselves: by a signal, by a cause that is known, by their own exception."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from signal import Signals

from orchestrator.diagnosis.case import Judgement, RankStory
from orchestrator.diagnosis.cause import Family, Hit
from orchestrator.diagnosis.exits import CRASHES, signal_name
from orchestrator.diagnosis.ladder.facts import (
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
from orchestrator.diagnosis.logs.scan import remedy_of
from orchestrator.diagnosis.logs.speech import is_telling
from orchestrator.diagnosis.logs.torchrun_words import signal_of

SETTINGS: frozenset[Family] = frozenset({"NET", "CONFIG", "ENV", "PORT", "RDZV", "FABRIC", "SSH", "DEPLOY"})
"""What all ranks were given alike: when all fail of it, none of them is to blame."""


OF_CRASHES: frozenset[Family] = frozenset({"CRASH", "GPU_HW", "GPU_SW", "SHM", "ENV"})
"""What a native crash can be the end of."""

RECEIVED = frozenset({"gloo.size", "nccl.truncated"})
"""Said by the rank that receives: the one that sent too much, or something else, lives on."""


def by_own_end(facts: Facts) -> Judgement | None:
    """The earliest rank that broke by itself: by a signal, by a cause that the catalogue knows, by its own exception."""
    own = [
        (story, word, sure)
        for story in facts.case.ranks
        for word in [facts.words[story.rank]]
        if (sure := strength(facts, story)) > 0
    ]
    if not own or (all(story.late for story, _, _ in own) and _went_in_silence(facts)):
        return None
    story, word, _ = _first(facts, own)
    if word.cause_id in RECEIVED and facts.case.odd is not None and facts.case.odd.ranks:
        return None
    alike = _find_alike(facts, story, word)
    judgement = _judge_end(facts, story, word, alike)
    everyone = {one.rank for one in facts.case.ranks if one.code != 0}
    if len(alike) == 1 or not everyone <= {one.rank for one in alike}:
        return judgement
    judgement = replace(judgement, reason=f"all {len(alike)} ranks failed of it alike")
    if word.kind == "cause" and judgement.family in SETTINGS:
        return replace(judgement, rank=None, node_rank=min(one.node_rank for one in alike))
    return judgement


def _went_in_silence(facts: Facts) -> bool:
    """Tell whether a rank failed without a word before we stopped the others: these then only answered to that."""
    return any(
        story.code and story.exact and not (story.stopped or story.late) and facts.words[story.rank].kind == "none"
        for story in facts.case.ranks
    )


def _find_alike(facts: Facts, story: RankStory, word: Word) -> list[RankStory]:
    """Find the ranks that broke of the same; also those that were stopped when they had just said so."""
    if word.kind == "cause" and word.hit is not None and is_telling(word.hit):
        return [one for one in facts.case.ranks if one.code != 0 and facts.words[one.rank].cause_id == word.cause_id]
    error = story.failure.error if story.failure else ""
    same = [
        one
        for one in facts.case.ranks
        if strength(facts, one) > 0
        and (one.failure.error if one.failure else "") == error
        and (one.code, one.signal) == (story.code, story.signal)
    ]
    return same or [story]


def _first(facts: Facts, own: Sequence[tuple[RankStory, Word, int]]) -> tuple[RankStory, Word, int]:
    if not facts.case.watched:
        # Their clocks differ, and their agents' times are to the second: what is sure comes first.
        return min(
            own, key=lambda one: (-one[2], one[0].stopped, not _is_root(facts, one[0]), moment(one[0]), one[0].rank)
        )
    # What ended after our stop order may have ended because of it: only where nobody broke before, it is asked.
    own = [one for one in own if not one[0].late] or list(own)
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
    aside = _aside(facts, {one.rank for one in alike})
    ranks = tuple(sorted(one.rank for one in alike))
    if word.hit is not None and word.cause_id in RECEIVED:
        return _judge_receiver(story, word.hit)
    if ended == KILL or facts.was_asked(story):
        return _judge_kill(facts, story, aside)
    if ended in CRASHES:
        return _judge_crash(story, word, aside)
    if word.kind in ("cause", "own", "hint"):
        # An exception that nobody caught gives exit code 1: with another one the script had dealt with it.
        sure = word.kind == "cause" and not story.late and story.code in (1, None)
        sure = sure and (story.exact or len(own_ranks(facts)) == len(alike))
        first = f", the first to end{aside}" if _is_first(facts, story) else aside
        reason = f"it stands in the last words of {list_ranks(ranks)}{first}"
        judgement = blame(_rule(word), word.hit, story, reason, ranks, sure=sure)
        return replace(judgement, last_lines=() if word.hit else _last_lines(story))
    return _judge_code(story, ranks, f"the script ended with exit code {story.code}", aside)


def _judge_code(story: RankStory, ranks: tuple[int, ...], cause: str, aside: str) -> Judgement:
    return Judgement(
        family="CODE",
        rule="exit",
        confidence="likely",
        cause=cause,
        cause_id="exit.code",
        rank=story.rank,
        node_rank=story.node_rank,
        ranks=ranks,
        reason=f"it ended by itself with exit code {story.code}, and raised nothing{aside}",
        evidence=show(story),
        last_lines=_last_lines(story),
    )


def by_last_line(facts: Facts) -> Judgement | None:
    """The first to end gave exit code 1 and raised nothing, as a script does that says in one line why it stops."""
    failed = [one for one in facts.case.ranks if (one.code or one.signal) and not one.stopped and not one.late]
    quiet = [
        one for one in failed if one.code == 1 and one.failure is not None and facts.words[one.rank].kind == "none"
    ]
    if not quiet:
        return None
    story = min(quiet, key=lambda one: (moment(one), one.rank))
    if any(moment(one) < moment(story) for one in failed):
        return None
    error = story.failure.error if story.failure else ""
    alike = tuple(sorted(one.rank for one in quiet if one.failure and one.failure.error == error))
    # What stands on stdout may just be what it was about to do.
    said = error if not story.file.endswith(".out") else f"the script ended with exit code {story.code}"
    return _judge_code(story, alike, said, _aside(facts, alike))


def _is_first(facts: Facts, story: RankStory) -> bool:
    return story.exact and all(moment(one) >= moment(story) for one in facts.case.ranks if one.code != 0)


def _rule(word: Word) -> str:
    return {"cause": "cause", "hint": "hint"}.get(word.kind, "exception")


def own_ranks(facts: Facts) -> list[RankStory]:
    """List the ranks that broke by themselves."""
    return [story for story in facts.case.ranks if strength(facts, story) > 0]


def _aside(facts: Facts, culprits: Container[int]) -> str:
    """Say what became of the others, where none of them broke by itself."""
    others = [one for one in facts.case.ranks if one.rank not in culprits and one.code != 0]
    if any(strength(facts, one) > 0 for one in others):
        return ""
    felt = [one for one in others if facts.is_victim(one)]
    if not felt:
        return ""
    first = min(moment(one) for one in facts.case.ranks if one.rank in culprits)
    after = " after that" if all(moment(one) >= first for one in felt) else ""
    return f"; {list_ranks(one.rank for one in felt)} lost {'it' if len(felt) == 1 else 'their peers'}{after}"


def _last_lines(story: RankStory) -> tuple[str, ...]:
    return (story.failure.error,) if story.failure else ()


def _judge_kill(facts: Facts, story: RankStory, aside: str) -> Judgement:
    name = signal_name(signal_of(story.code, story.signal))
    how = f"exit code {story.code}" if story.code else name
    node = facts.by_node[story.node_rank]
    quiet = " and said nothing of its own" if story.failure is None else ""
    read = node.kernel or node.kernel_file
    kernel = "says nothing of it" if read else "is not at hand, so it may have been for memory"
    unknown = f"; the kernel's log {kernel}" if name == "SIGKILL" else ""
    return Judgement(
        family="KILLED",
        rule="exit",
        confidence="likely",
        cause=f"killed by {name}",
        cause_id="exit.kill" if name == "SIGKILL" else "exit.term",
        rank=story.rank,
        node_rank=story.node_rank,
        ranks=(story.rank,),
        reason=f"it ended with {how}{quiet}, before anything else failed{unknown}{aside}",
        evidence=show(story),
        remedy="ask the kernel log of that node for `Killed process`; without one, a person or a program did it"
        if name == "SIGKILL"
        else "a person or a program on that node sent it: a clean-up, a scheduler, a limit of a session",
    )


def _judge_crash(story: RankStory, word: Word, aside: str) -> Judgement:
    number = signal_of(story.code, story.signal) or Signals.SIGABRT
    name = signal_name(number)
    # Only abort() is called by who has said why; the other signals come without asking.
    speaks = word.kind == "cause" and word.hit is not None
    if speaks and word.hit is not None and (number == Signals.SIGABRT or word.hit.cause.family in OF_CRASHES):
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
    """Say what was received where; who sent it is not told."""
    cause, remedy, cause_id = told(hit)
    return Judgement(
        family="MISMATCH",
        rule="receiver",
        confidence="likely",
        cause=cause,
        cause_id=cause_id,
        reason=f"rank {story.rank} got more or less than it had room for: it is only the receiver, who sent it is not told",
        evidence=show(story, hit),
        remedy=remedy or remedy_of(hit),
    )
