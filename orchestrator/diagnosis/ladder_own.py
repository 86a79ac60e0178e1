"""The rungs for ranks that broke by themselves: what the kernel says, texts that name ranks, ends and last words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from signal import Signals

from orchestrator.diagnosis.case import Judgement, RankStory
from orchestrator.diagnosis.cause import Family, Hit
from orchestrator.diagnosis.exits import signal_name
from orchestrator.diagnosis.ladder_facts import (
    CRASHES,
    KILL,
    PLAIN_CODES,
    RELATED_S,
    Facts,
    Word,
    blame,
    list_ranks,
    show,
    told,
)
from orchestrator.diagnosis.scan import remedy_of, title_of
from orchestrator.diagnosis.speech import is_telling
from orchestrator.diagnosis.torchrun_words import signal_of

SETTINGS: frozenset[Family] = frozenset({"NET", "CONFIG", "ENV", "PORT", "RDZV", "FABRIC", "SSH", "DEPLOY"})
"""What all ranks were given alike: when all fail of it, none of them is to blame."""
GPU_FAMILIES: frozenset[Family] = frozenset({"GPU_HW", "GPU_SW", "FABRIC"})
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d+) is running collective: (?P<print>.*?)(?=,? ?[Bb]ut Rank \d|Collectives differ|$)"
)
_SHAPE = re.compile(r"SequenceNumber=\d+,?\s*|pinned_.*|TensorDevice.*")


def by_kernel(facts: Facts) -> Judgement | None:
    """The kernel of the node, or the rank's own memory counter, confirms how the rank ended."""
    found = [
        judgement
        for story in facts.case.ranks
        if not story.stopped and story.code != 0
        for judgement in [_confirm(facts, story)]
        if judgement is not None
    ]
    return min(found, key=lambda one: (_moment(facts.by_rank[one.rank or 0]), one.rank or 0), default=None)


def _confirm(facts: Facts, story: RankStory) -> Judgement | None:
    ended = signal_of(story.code, story.signal)
    node = facts.by_node[story.node_rank]
    pids = {str(story.pid)} | {pid for hit in story.hits for pid in re.findall(r"\d+", hit.groups.get("pid", ""))}
    dead = ended is not None or facts.words[story.rank].kind == "cause"
    hit = max(
        (hit for hit in node.kernel if hit.groups.get("pid") in pids and dead),
        key=lambda hit: hit.cause.priority,
        default=None,
    )
    if hit is not None:
        reason = f"the kernel of {node.name} names pid {hit.groups['pid']}, which is rank {story.rank}'s"
        return blame("kernel", hit, story, reason, sure=True)
    if story.oom_kills and ended == KILL:
        oom = next((hit for hit in node.kernel if hit.cause.family == "OOM_HOST"), None)
        reason = f"its own memory cgroup counts {story.oom_kills} process(es) that the kernel killed"
        return replace(
            blame("kernel", oom, story, reason, sure=True),
            family="OOM_HOST",
            cause=title_of(oom) if oom else "out of host memory: the kernel killed the rank",
            cause_id=oom.cause.id if oom else "host.oomk",
        )
    hardware = next(
        (hit for hit in node.kernel if hit.cause.family in GPU_FAMILIES and not hit.groups.get("pid")), None
    )
    if hardware is not None and _is_about_gpu(facts, story):
        return blame("kernel", hardware, story, f"the kernel of {node.name} tells of its GPU")
    return None


def _is_about_gpu(facts: Facts, story: RankStory) -> bool:
    hit = facts.words[story.rank].hit
    said = f"{story.failure.error if story.failure else ''} {hit.text if hit else ''}"
    family = hit.cause.family if hit else ""
    return (
        family in GPU_FAMILIES or "CUDA" in said or "HIP" in said or "nccl.cuda" in (one.cause.id for one in story.hits)
    )


def by_naming(facts: Facts) -> Judgement | None:
    """A text names the ranks that differ from all others, or that never came."""
    named = [(story, hit) for story in facts.case.ranks for hit in story.hits if hit.cause.role == "cause"]
    mismatch = [(story, hit) for story, hit in named if hit.cause.id == "c10d.mismatch"]
    if mismatch and not _broke_otherwise(facts, "c10d.mismatch"):
        return _judge_fingerprints(facts, mismatch)
    for story, hit in named:
        ranks = _named_ranks(hit)
        if hit.cause.id not in ("c10d.mbarrier", "c10d.desync", "nccl.wsize") or not ranks:
            continue
        if _broke_otherwise(facts, hit.cause.id):
            return None
        culprit = facts.by_rank.get(ranks[0])
        reason = f"rank {story.rank} names {list_ranks(ranks)}"
        judgement = blame("named", hit, story, reason, ranks)
        return replace(judgement, rank=ranks[0], node_rank=culprit.node_rank if culprit else _node_of(facts, ranks[0]))
    return None


def _named_ranks(hit: Hit) -> list[int]:
    text = hit.groups.get("rank") or hit.groups.get("rank2") or ""
    return [int(number) for number in re.findall(r"\d+", text)]


def _node_of(facts: Facts, rank: int) -> int | None:
    return next((node.node_rank for node in facts.case.nodes if rank in node.ranks), None)


def _broke_otherwise(facts: Facts, cause_id: str) -> bool:
    """Tell whether some rank broke of something else: then it is why the named one did not come."""
    return any(
        facts.words[story.rank].cause_id != cause_id and _strength(facts, story, facts.words[story.rank]) > 0
        for story in facts.case.ranks
    )


def _judge_fingerprints(facts: Facts, said: Sequence[tuple[RankStory, Hit]]) -> Judgement:
    prints: dict[int, str] = {}
    for story, hit in said:
        whole = story.failure.error if story.failure and len(story.failure.error) > len(hit.text) else hit.text
        for found in _FINGERPRINT.finditer(whole):
            prints.setdefault(int(found["rank"]), _SHAPE.sub("", found["print"]).strip(" ,."))
        if other := re.search(r"[Bb]ut Rank (?P<rank>\d+) is running (?:collective: )?(?P<print>.*)", whole):
            prints.setdefault(int(other["rank"]), _SHAPE.sub("", other["print"]).strip(" ,."))
    seen = Counter(prints.values())
    usual = seen.most_common(1)[0][0] if seen else ""
    odd = sorted(rank for rank, text in prints.items() if text != usual)
    clear = len(seen) > 1 and seen[usual] > len(odd)
    first = said[0][0]
    judgement = blame("named", said[0][1], first, "", sure=clear)
    if not clear:
        return replace(
            judgement,
            rank=None,
            node_rank=None,
            ranks=(),
            reason="the collectives differ, and neither is the rarer one",
        )
    reason = f"of {len(prints)} ranks {seen[usual]} do {usual[:120]}, {list_ranks(odd)} {prints[odd[0]][:120]}"
    culprit = facts.by_rank.get(odd[0], first)
    return replace(
        judgement,
        rank=odd[0],
        node_rank=culprit.node_rank,
        ranks=tuple(odd),
        reason=reason,
        evidence=(*show(culprit, next((hit for story, hit in said if story.rank == odd[0]), None)),),
    )


def by_own_end(facts: Facts) -> Judgement | None:
    """The earliest rank that broke by itself: by a signal, by a cause that the catalogue knows, by its own exception."""
    own = [
        (story, word, strength)
        for story in facts.case.ranks
        for word in [facts.words[story.rank]]
        if (strength := _strength(facts, story, word)) > 0
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


def _strength(facts: Facts, story: RankStory, word: Word) -> int:
    """Say how sure it is that a rank broke by itself: 3 a signal, 2 a known cause, 1 an exception or code, 0 not."""
    if story.code == 0 or story.runs:
        return 0
    if story.stopped:
        # Its words were said before it was told to end.
        return 2 if word.kind == "cause" and not facts.case.watched else 0
    ended = signal_of(story.code, story.signal)
    if ended == KILL or (ended in CRASHES and not facts.is_victim(story)):
        return 3
    if word.kind == "cause" or facts.is_victim(story):
        return 2 if word.kind == "cause" else 0
    told_why = word.kind in ("own", "hint")
    return 1 if told_why or (story.code not in PLAIN_CODES and ended is None) else 0


def _moment(story: RankStory) -> float:
    return story.time if story.time is not None else float("inf")


def _first(facts: Facts, own: Sequence[tuple[RankStory, Word, int]]) -> tuple[RankStory, Word, int]:
    if not facts.case.watched:
        # Their clocks differ, and their agents' times are to the second: what is sure comes first.
        return min(
            own, key=lambda one: (-one[2], one[0].stopped, not _is_root(facts, one[0]), _moment(one[0]), one[0].rank)
        )
    first = min(own, key=lambda one: (_moment(one[0]), one[0].rank))
    if first[2] == 1:
        near = [one for one in own if one[2] > 1 and _moment(one[0]) - _moment(first[0]) <= RELATED_S]
        return min(near, key=lambda one: (_moment(one[0]), one[0].rank), default=first)
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
    return [story for story in facts.case.ranks if _strength(facts, story, facts.words[story.rank]) > 0]


def _strengths(facts: Facts, stories: Sequence[RankStory]) -> bool:
    return any(_strength(facts, story, facts.words[story.rank]) > 0 for story in stories)


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
