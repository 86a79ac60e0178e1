"""What the rungs of the ladder ask of a case: who broke by itself, who only felt it, who never said a word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal

from orchestrator.diagnosis.case import Case, Judgement, NodeStory, RankStory
from orchestrator.diagnosis.cause import Hit
from orchestrator.diagnosis.exits import CRASHES
from orchestrator.diagnosis.logs.scan import remedy_of, title_of
from orchestrator.diagnosis.logs.speech import EXCEPTION, is_telling
from orchestrator.diagnosis.logs.torchrun_words import signal_of
from orchestrator.light_dataclass import dataclass
from orchestrator.values import Evidence

KILL, TERM = 9, 15
ASKED = frozenset({1, 2, 15})
"""Signals by which a process is asked to end."""
WAITED = frozenset({"gloo.timeout", "nccl.watchdog", "rdzv.keys", "rdzv.store_barrier", "c10d.mbarrier"})
"""Words of a rank that waited in vain; after other words of a victim somebody had gone."""
PLAIN_CODES = frozenset({None, 0, 1})
NO_SIGN = "no sign"
"""The rule of logs that tell of no failure, and of no end: whether it failed is not known."""
RELATED_S = 5.0
"""An end and the consequences of it lie no further apart than this, whichever is told first."""

Kind = Literal["cause", "victim", "hint", "own", "none"]


@dataclass(frozen=True)
class Word:
    """What the last words of one rank are worth."""

    kind: Kind
    hit: Hit | None = None

    @property
    def cause_id(self) -> str:
        """The entry of the catalogue."""
        return self.hit.cause.id if self.hit else ""


def weigh(story: RankStory) -> Word:
    """Weigh the last words of a rank: its first exception counts, what follows from that does not."""
    telling = [hit for hit in story.hits if is_telling(hit) and "enq" not in hit.groups]
    victim = next((place for place, hit in enumerate(telling) if hit.cause.role == "victim"), len(telling))
    causes = [hit for hit in telling[:victim] if hit.cause.role == "cause" and hit.cause.id not in STORE]
    if causes:
        return Word("cause", max(causes, key=lambda hit: hit.cause.priority))
    if victim < len(telling):
        return Word("victim", telling[victim])
    if telling:
        return Word("hint", max(telling, key=lambda hit: hit.cause.priority))
    return _weigh_plain(story)


def _weigh_plain(story: RankStory) -> Word:
    """Weigh words that the catalogue knows at most as an exception."""
    generic = [hit for hit in story.hits if hit.cause.role == "cause"]
    if story.failure is not None and story.failure.consequence:
        return Word("victim", generic[-1] if generic else None)
    if generic:
        return Word("own", generic[-1])
    if story.failure is not None and (story.failure.frames or EXCEPTION.match(story.failure.error)):
        return Word("own")
    return Word("none")


@dataclass(frozen=True)
class Facts:
    """A case with what follows from it at once."""

    case: Case

    @cached_property
    def words(self) -> dict[int, Word]:
        """What each rank's last words are worth."""
        return {story.rank: weigh(story) for story in self.case.ranks}

    @cached_property
    def by_rank(self) -> dict[int, RankStory]:
        """The stories by rank."""
        return {story.rank: story for story in self.case.ranks}

    @cached_property
    def by_node(self) -> dict[int, NodeStory]:
        """The nodes by node rank."""
        return {node.node_rank: node for node in self.case.nodes}

    @cached_property
    def victims(self) -> list[RankStory]:
        """Ranks that speak of somebody else's end."""
        return [story for story in self.case.ranks if self.is_victim(story)]

    @cached_property
    def waiters(self) -> list[RankStory]:
        """Ranks that waited in vain."""
        return [story for story in self.victims if waited(self.words[story.rank])]

    @cached_property
    def silent(self) -> list[RankStory]:
        """Ranks that never complained and did not leave by themselves."""
        return [
            story
            for story in self.case.ranks
            if self.words[story.rank].kind == "none" and story.code != 0 and not self.crashed(story)
        ]

    @cached_property
    def absent(self) -> list[RankStory]:
        """Ranks that ended well."""
        return [story for story in self.case.ranks if story.code == 0 and not story.runs]

    def is_victim(self, story: RankStory) -> bool:
        """Tell whether a rank's words are about somebody else."""
        word = self.words[story.rank]
        return word.kind == "victim" or (
            word.kind == "hint" and (word.cause_id in WAITED | STORE or is_about_others(word))
        )

    def crashed(self, story: RankStory) -> bool:
        """Tell whether a rank was ended by a signal that nobody's agent sends."""
        return not story.stopped and signal_of(story.code, story.signal) in CRASHES | {KILL}

    def was_asked(self, story: RankStory) -> bool:
        """Tell whether somebody else asked a rank to end: its agent only does when another rank of the node has failed."""
        root = any(claim.root and claim.rank == story.rank for claim in self.by_node[story.node_rank].claims)
        asked = signal_of(story.code, story.signal) in ASKED and not story.stopped and (story.exact or root)
        return asked and not any(
            other.node_rank == story.node_rank
            and other.rank != story.rank
            and other.code != 0
            and not other.stopped
            and moment(other) <= moment(story)
            for other in self.case.ranks
        )

    def name(self, node_rank: int | None) -> str:
        """Name a node."""
        node = self.by_node.get(node_rank) if node_rank is not None else None
        return node.name if node else "?"


STORE = frozenset({"rdzv.clients", "rdzv.connect_to", "rdzv.refused", "rdzv.join_timeout", "rdzv.conn_lost"})


def waited(word: Word) -> bool:
    """Tell whether a rank's first word of trouble is that it waited in vain."""
    return word.hit is not None and (word.cause_id in WAITED or word.hit.cause.family == "HANG")


def strength(facts: Facts, story: RankStory) -> int:
    """Say how sure it is that a rank broke by itself: 3 a signal, 2 a known cause, 1 an exception or code, 0 not."""
    word = facts.words[story.rank]
    if story.code == 0 or story.runs:
        return 0
    if story.stopped:
        # Its words were said before it was told to end.
        return 2 if word.kind == "cause" and not facts.case.watched else 0
    if story.late and word.hit is not None and "Terminated" in word.hit.text:
        return 0  # its data loaders got our TERM as well
    ended = signal_of(story.code, story.signal)
    if ended == KILL or (ended in CRASHES and not facts.is_victim(story)) or facts.was_asked(story):
        return 3
    if word.kind == "cause" or facts.is_victim(story):
        return 2 if word.kind == "cause" else 0
    told_why = word.kind == "own" or (word.kind == "hint" and not is_about_others(word))
    return 1 if told_why or (story.code not in PLAIN_CODES and ended is None) else 0


def is_about_others(word: Word) -> bool:
    """Tell whether a hint is about ranks that did not come: whoever gives it waited for them."""
    return word.hit is not None and word.hit.cause.family == "HANG"


def moment(story: RankStory) -> float:
    """Give the time of its end; what is unknown comes last."""
    return story.time if story.time is not None else float("inf")


def node_of(facts: Facts, rank: int | None) -> int | None:
    """Find the node of a rank, by its story or by the plan."""
    if rank is None:
        return None
    if rank in facts.by_rank:
        return facts.by_rank[rank].node_rank
    return next((node.node_rank for node in facts.case.nodes if rank in node.ranks), None)


def list_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """Write "rank 3" or "ranks 1, 2 and 5"."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > most:
        return f"{len(numbers)} ranks ({', '.join(map(str, numbers[:most]))} …)"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def show(story: RankStory | NodeStory, hit: Hit | None = None) -> tuple[Evidence, ...]:
    """Give the place where it is said."""
    line = hit.line if hit is not None else None
    if line is None and isinstance(story, RankStory) and story.failure is not None:
        line = story.failure.line
    return (Evidence(file=story.file, line=line),) if story.file else ()


def told(hit: Hit | None, story: RankStory | None = None) -> tuple[str, str, str]:
    """Give headline, remedy and entry of what a rank said."""
    error = story.failure.error if story is not None and story.failure is not None else ""
    if hit is None:
        return error or "unknown", "", ""
    return title_of(hit) or error, remedy_of(hit), hit.cause.id


def blame(
    rule: str, hit: Hit | None, story: RankStory, reason: str, ranks: Sequence[int] = (), *, sure: bool = False
) -> Judgement:
    """Build the judgement on a rank that broke by itself."""
    cause, remedy, cause_id = told(hit, story)
    return Judgement(
        family=hit.cause.family if hit else "CODE",
        rule=rule,
        confidence="certain" if sure else "likely",
        cause=cause,
        cause_id=cause_id,
        rank=story.rank,
        node_rank=story.node_rank,
        ranks=tuple(ranks) or (story.rank,),
        reason=reason,
        evidence=show(story, hit),
        remedy=remedy,
    )
