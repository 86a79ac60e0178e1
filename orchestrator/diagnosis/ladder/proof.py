"""The rungs that prove: what the kernel confirms, and texts that name the ranks that differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.diagnosis.case import Judgement, NodeStory, RankStory
from orchestrator.diagnosis.cause import Family, Hit
from orchestrator.diagnosis.ladder.facts import KILL, Facts, blame, list_ranks, moment, node_of, show, strength
from orchestrator.diagnosis.logs.torchrun_words import signal_of
from orchestrator.values import Evidence

GPU_FAMILIES: frozenset[Family] = frozenset({"GPU_HW", "GPU_SW", "FABRIC"})
RECENT_S = 60.0
"""Hardware that failed longer ago than this is not what a rank ended of."""
_GPU_FAILED = re.compile(
    r"\b(?:CUDA|HIP)(?: \w+)? (?:error|failure)|\b(?:cuda|hip)Error[A-Z]|\bCUDA_ERROR_|\b(?:CU|HIP|ROC)BLAS|\bCUDNN_|"
    r"\bcuDNN error|\bMIOpen|unspecified launch failure|illegal memory access"
)
"""Not the bare word: a script speaks of CUDA in many an error of its own."""
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d+) is running collective: (?P<print>.*?)(?=,? ?[Bb]ut Rank \d|Collectives differ|$)"
)
_SHAPE = re.compile(r"CollectiveFingerPrint\(|SequenceNumber=\d+,?\s*|pinned_.*|TensorDevice.*")


def by_kernel(facts: Facts) -> Judgement | None:
    """The kernel of the node, or the rank's own memory counter, confirms how the rank ended."""
    found = [
        judgement
        for story in facts.case.ranks
        if not story.stopped and story.code != 0
        for judgement in [_confirm(facts, story)]
        if judgement is not None
    ]
    return min(found, key=lambda one: (moment(facts.by_rank[one.rank or 0]), one.rank or 0), default=None)


def _confirm(facts: Facts, story: RankStory) -> Judgement | None:
    ended = signal_of(story.code, story.signal)
    node = facts.by_node[story.node_rank]
    pids = {str(story.pid)} | {pid for hit in story.hits for pid in re.findall(r"\d+", hit.groups.get("pid", ""))}
    dead = ended is not None or facts.words[story.rank].kind == "cause"
    hit = _strongest(hit for hit in node.kernel if hit.groups.get("pid") in pids and dead)
    if hit is not None:
        reason = f"the kernel of {node.name} names pid {hit.groups['pid']}, which is rank {story.rank}'s"
        return _blame(node, hit, story, reason, sure=True)
    if story.oom_kills and ended == KILL:
        return _confirm_by_counter(node, story)
    hardware = _strongest(
        hit
        for hit in node.kernel
        if hit.cause.family in GPU_FAMILIES and not hit.groups.get("pid") and _is_recent(facts, hit, story)
    )
    if hardware is not None and _is_about_gpu(facts, story) and not _follows(facts, story):
        return _blame(node, hardware, story, f"the kernel of {node.name} tells of its GPU")
    return None


def _strongest(hits: Iterable[Hit]) -> Hit | None:
    return max(hits, key=lambda hit: hit.cause.priority, default=None)


def _confirm_by_counter(node: NodeStory, story: RankStory) -> Judgement:
    killed = "1 process" if story.oom_kills == 1 else f"{story.oom_kills} processes"
    reason = f"the counter of its own memory cgroup says that the kernel killed {killed} while it ran"
    oom = _strongest(hit for hit in node.kernel if hit.cause.family == "OOM_HOST")
    # A pid in the kernel's log is another one inside of a container.
    judgement = _blame(node, oom, story, reason, sure=True)
    return replace(
        judgement,
        family="OOM_HOST",
        cause="out of memory: the kernel killed the rank, its memory cgroup was full",
        cause_id=oom.cause.id if oom else "host.oomk",
        remedy=judgement.remedy or "raise the limit of its cgroup, or lower what the rank and its data workers hold",
    )


def _blame(node: NodeStory, hit: Hit | None, story: RankStory, reason: str, *, sure: bool = False) -> Judgement:
    """Blame a rank with a line of the kernel's log."""
    judgement = blame("kernel", hit, story, reason, sure=sure)
    lines = [Evidence(file=node.kernel_file, line=hit.line)] if hit is not None and node.kernel_file else []
    return replace(judgement, evidence=(*lines, *show(story)))


def _is_recent(facts: Facts, hit: Hit, story: RankStory) -> bool:
    """Tell whether the kernel said it about when the rank ended; its age counts from the first end, when the node was asked."""
    age = hit.groups.get("age_s")
    if age is None:
        return True
    ends = [moment(one) for one in facts.case.ranks if one.code != 0 and one.time is not None]
    behind = moment(story) - min(ends) if ends and story.time is not None else 0.0
    return float(age) + behind <= RECENT_S


def _follows(facts: Facts, story: RankStory) -> bool:
    """Tell whether a rank that felt others end, or ended after our stop, has one before it that broke by itself."""
    return (story.late or facts.is_victim(story)) and any(
        strength(facts, one) > 0 and not one.late and moment(one) < moment(story)
        for one in facts.case.ranks
        if one.rank != story.rank
    )


def _is_about_gpu(facts: Facts, story: RankStory) -> bool:
    hit = facts.words[story.rank].hit
    said = f"{story.failure.error if story.failure else ''} {hit.text if hit else ''}"
    family = hit.cause.family if hit else ""
    failed = family in GPU_FAMILIES or _GPU_FAILED.search(said) is not None
    return failed or "nccl.cuda" in (one.cause.id for one in story.hits)


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
        reason = f"rank {story.rank} names {list_ranks(ranks)}"
        judgement = blame("named", hit, story, reason, ranks)
        return replace(judgement, rank=ranks[0], node_rank=node_of(facts, ranks[0]))
    return None


def _named_ranks(hit: Hit) -> list[int]:
    text = hit.groups.get("rank") or hit.groups.get("rank2") or ""
    return [int(number) for number in re.findall(r"\d+", text)]


def _broke_otherwise(facts: Facts, cause_id: str) -> bool:
    """Tell whether some rank broke of something else: then it is why the named one did not come."""
    return any(
        facts.words[story.rank].cause_id != cause_id and strength(facts, story) > 0 for story in facts.case.ranks
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
