"""Tells the story of one node and of each of its ranks, by its log and by what lies beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from orchestrator.diagnosis.case import Claim, NodeStory, Odd, RankStory
from orchestrator.diagnosis.cause import Hit
from orchestrator.diagnosis.exits import CRASHES
from orchestrator.diagnosis.logs.nodelog import AGENT, ANYONE, NodeLog
from orchestrator.diagnosis.logs.speech import EXCEPTION, NEAR, PATIENCE, Speech, Utterance
from orchestrator.diagnosis.logs.torchrun_words import parse_status, signal_of
from orchestrator.diagnosis.logs.tracebacks import Failure
from orchestrator.light_dataclass import dataclass

TAIL = PATIENCE
_CRASH = re.compile(
    r"^\s*(?:Fatal Python error|terminate called|what\(\):|\[[EF]\d{4} |\*\*\*|free\(\)|malloc|double free|.*Assertion )"
)
_PROGRAM = re.compile(r"^(?:[\w./@+-]+: )+|^\S+@\S+: ")
KILLED = frozenset({9, 15})
SSH_ENDED = 255


@dataclass(frozen=True)
class Beside:
    """What lies beside the logs."""

    kernel: Mapping[str, tuple[Hit, ...]] = field(default_factory=dict)
    """By the name of the node."""
    kernel_files: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[int, Failure] = field(default_factory=dict)
    """Torchelastic error files by rank."""
    places: Mapping[int, str] = field(default_factory=dict)
    """The node of ranks that no log tells of."""
    odd: Odd | None = None


class NodeTeller:
    """Tells the stories of one node."""

    def __init__(self, log: NodeLog, node_rank: int, ranks: tuple[int, ...], beside: Beside) -> None:
        """Sort what was said by who can have said it."""
        self._log = log
        self._node_rank = node_rank
        self._ranks = ranks
        self._beside = beside
        self._first = self._find_first()
        self._claims = {claim.rank: claim for claim in _claims(log, ranks)}
        speech = log.speech(ANYONE)
        said = list(speech.utterances) if speech else []
        agent = log.speech(AGENT)
        self._agent_said = [*(agent.utterances if agent else ()), *(one for one in said if one.agent)]
        self._nameless = [one for one in said if not one.agent]
        if speech and not ranks and not self._agent_said and not log.agent.failed:
            # One process alone: what it went on after did not end it.
            self._nameless = [one for one in self._nameless if not speech.went_on(one)]

    def ranks(self) -> list[RankStory]:
        """Tell of every rank of the node."""
        given = self._give_away()
        return [self._rank(rank, given.get(rank)) for rank in self._ranks]

    def lone_process(self) -> list[RankStory]:
        """Tell of a node on which one process ran, without an agent."""
        if len(self._nameless) != 1 or self._agent_said or self._log.agent.failed:
            return []
        last = self._nameless[-1]
        code, signal = parse_status(self._log.exit_code) if self._log.exit_code is not None else (None, None)
        if code == 0:
            return []
        return [
            RankStory(
                rank=self._node_rank if self._log.task is None else self._log.task,
                node_rank=self._node_rank,
                local_rank=0 if self._log.task is None else None,
                code=code,
                signal=signal,
                failure=last.failure,
                hits=last.hits,
                file=self._log.file,
            )
        ]

    def _rank(self, rank: int, nameless: Utterance | None) -> RankStory:
        claim = self._claims.get(rank)
        local = claim.local_rank if claim else rank - self._first
        speech = self._log.speech(("rank", rank)) or self._log.speech(("local", local))
        last = speech.utterances[-1] if speech and speech.utterances else nameless
        if claim is None and speech and last and speech.went_on(last):
            last = None
        failure = last.failure if last else self._beside.errors.get(rank) or self._log.agent.told.get(rank)
        hits = last.hits if last else ()
        code, signal = (claim.code, claim.signal) if claim else (None, None)
        if claim is None and self._listed():
            # Its agent lists every rank that failed or was stopped.
            code = 0
        elif claim is None and (
            self._log.exit_code == 0 or rank in self._log.agent.ended_well or self._at_exit_barrier()
        ):
            code = 0
        ended = signal_of(code, signal)
        stopped = claim is not None and self._log.agent.stopped(claim)
        if last is None and speech is not None and code != 0 and not stopped:
            # A process that ended itself by a code may have said why on its way; one that was ended did not.
            said = (*speech.loose, *(speech.murmurs if code and ended is None else ()))
            hits = tuple(hit for hit in said if (hit.line or 0) > speech.last - NEAR)
        if ended in CRASHES and last is None:
            hits = (*hits, *self._last_loose(_speaks_of_crash))
        hits = (*hits, *self._progress_hits(speech))
        return RankStory(
            rank=rank,
            node_rank=self._node_rank,
            local_rank=local,
            pid=(claim.pid if claim else None) or self._log.agent.pids.get(rank),
            code=code,
            signal=signal,
            time=claim.time if claim else None,
            stopped=stopped,
            failure=failure,
            hits=hits,
            file=self._log.file,
        )

    def _find_first(self) -> int:
        """Find the rank of the local rank 0: as a line tells it, or as they are numbered."""
        log = self._log
        first = min((rank - local for rank, local in log.local_of.items()), default=None)
        if first is None:
            first = min(self._ranks, default=0)
            if log.teed and not log.ranks:
                first -= min(log.teed)
        return first

    def _progress_hits(self, speech: Speech | None) -> tuple[Hit, ...]:
        """Give the figures of NCCL's watchdog, wherever a rank told them."""
        return (
            tuple(hit for hit in speech.loose if "enq" in hit.groups or hit.cause.id == "nccl.watchdog")
            if speech
            else ()
        )

    def _at_exit_barrier(self) -> bool:
        """An agent goes there when all of its ranks have ended well."""
        return any(hit.cause.id == "rdzv.exit_barrier" for one in self._agent_said for hit in one.hits)

    def _listed(self) -> bool:
        return any(claim.root for claim in self._log.agent.claims)

    def _give_away(self) -> dict[int, Utterance]:
        """Give exceptions without a name to the ranks that can have raised them: they failed and said nothing else."""
        silent = [rank for rank in self._ranks if not self._speaks(rank)]
        failed = [rank for rank in silent if (claim := self._claims.get(rank)) is not None and claim.code]
        failed.sort(key=lambda rank: not self._claims[rank].root)
        stopped = [rank for rank in silent if (claim := self._claims.get(rank)) is not None and claim.signal in KILLED]
        reported = self._log.agent.reported or self._log.lines
        said = [one for one in self._nameless if one.end > reported - TAIL or not failed]
        if not self._claims and len(said) == 1 and len(self._ranks) == 1:
            return {self._ranks[0]: said[0]}
        given = dict(zip(failed, said[-len(silent) :] if silent else [], strict=False))
        late = [one for one in said if one not in given.values() and one.end < reported]
        return given | dict(zip(stopped, late, strict=False))

    def _speaks(self, rank: int) -> bool:
        claim = self._claims.get(rank)
        keys = (self._log.speech(("rank", rank)), self._log.speech(("local", claim.local_rank)) if claim else None)
        return any(speech is not None and speech.utterances for speech in keys)

    def _last_loose(self, speaks: Callable[[Hit], bool]) -> tuple[Hit, ...]:
        speech = self._log.speech(ANYONE)
        reported = self._log.agent.reported or self._log.lines
        said = (*speech.loose, *speech.murmurs) if speech else ()
        return tuple(hit for hit in said if (hit.line or 0) > reported - TAIL and speaks(hit))

    def node(self, stories: Sequence[RankStory]) -> NodeStory:
        """Tell of the node itself."""
        log = self._log
        code, signal = parse_status(log.exit_code) if log.exit_code is not None else (None, None)
        ended = signal_of(code, signal)
        reported = bool(log.agent.claims or log.agent.failed or self._agent_said or log.agent.signals)
        cut = (code is None and ended is None) or ended in KILLED or code == SSH_ENDED
        agent = log.speech(AGENT)
        hits: tuple[Hit, ...] = tuple(hit for one in self._agent_said for hit in one.hits)
        if self._agent_said and not log.agent.claims:
            hits = (*log.native, *hits)
        hits = (*hits, *(agent.loose if agent else ()))
        if not stories and (log.agent.failed or not reported):
            # Whose they are is not told: a rank's, as far as anybody can see.
            hits = (*hits, *(hit for one in self._nameless for hit in one.hits))
        spoke = reported or any(story.failure for story in stories)
        if not spoke:
            hits = (*hits, *self._last_loose(_speaks_as_program), *log.native)
        return NodeStory(
            node_rank=self._node_rank,
            name=log.name,
            ranks=self._ranks,
            agent_code=None if ended is not None else code,
            agent_signal=ended,
            closed=reported or not cut or (spoke and bool(stories)),
            claims=tuple(log.agent.claims),
            hits=hits,
            kernel=self._beside.kernel.get(log.name, ()),
            kernel_file=self._beside.kernel_files.get(log.name, ""),
            file=log.file,
        )


def _speaks_of_crash(hit: Hit) -> bool:
    """Tell whether a line that no rank can be told for is the last word of a process that crashed."""
    return hit.cause.family in ("CRASH", "SHM") or _CRASH.match(hit.text) is not None


def _speaks_as_program(hit: Hit) -> bool:
    """Tell whether a line is a program's complaint about itself, and not what a script prints on its way."""
    if hit.cause.family in ("SSH", "DEPLOY", "NODE_LOST"):
        return True
    return _PROGRAM.match(hit.text) is not None or EXCEPTION.match(hit.text) is not None


def _claims(log: NodeLog, ranks: tuple[int, ...]) -> list[Claim]:
    """Give the agent's list; where there is none, what its one-line reports tell."""
    if log.agent.claims or not ranks:
        return log.agent.claims
    first = min(ranks)
    found: list[Claim] = []
    for local, number, pid in log.agent.failed:
        code, signal = parse_status(number)
        found.append(
            Claim(rank=first + local, local_rank=local, code=code, signal=signal, pid=pid, time=None, root=not found)
        )
    return found
