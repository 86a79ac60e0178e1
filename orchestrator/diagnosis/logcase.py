"""Puts the logs of the nodes of one run together into the form in which it is judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.diagnosis.case import Case, Claim, NodeStory, Odd, RankStory
from orchestrator.diagnosis.cause import Hit
from orchestrator.diagnosis.nodelog import AGENT, ANYONE, NodeLog
from orchestrator.diagnosis.speech import EXCEPTION, NEAR, PATIENCE, Speech, Utterance
from orchestrator.diagnosis.torchrun_words import parse_status, signal_of
from orchestrator.diagnosis.tracebacks import Failure

CRASHES = frozenset({4, 6, 7, 8, 11})
"""Signals by which a process ends itself: it may have said why."""
TAIL = PATIENCE
_CRASH = re.compile(
    r"^\s*(?:Fatal Python error|terminate called|what\(\):|\[[EF]\d{4} |\*\*\*|free\(\)|malloc|double free|.*Assertion )"
)
_PROGRAM = re.compile(r"^(?:[\w./@+-]+: )+|^\S+@\S+: ")
KILLED = frozenset({9, 15})
SSH_ENDED = 255


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How a rank ended, by our own record."""

    code: int | None
    signal: int | None
    time: float
    pid: int | None = None
    after_stop: bool = False
    oom_kills: int = 0


@dataclass(frozen=True)
class Beside:
    """What lies beside the logs."""

    kernel: Mapping[str, tuple[Hit, ...]] = field(default_factory=dict)
    """By the name of the node."""
    errors: Mapping[int, Failure] = field(default_factory=dict)
    """Torchelastic error files by rank."""
    ends: Mapping[int, RankEnd] = field(default_factory=dict)
    """Our own records of how ranks ended."""
    places: Mapping[int, str] = field(default_factory=dict)
    """The node of ranks that no log tells of."""
    odd: Odd | None = None


def build_log_case(logs: Sequence[NodeLog], beside: Beside | None = None) -> Case:
    """Build the case of a run that there are only logs of."""
    beside = beside or Beside()
    layout = find_layout(logs)
    known = {rank for ranks in layout.values() for rank in ranks}
    for rank, name in beside.places.items():
        if rank not in known and name in layout:
            layout[name] = tuple(sorted({*layout[name], rank}))
    order = sorted(logs, key=lambda log: (min(layout[log.name], default=1 << 30), natural_key(log.name)))
    lone = not any(layout.values())
    nodes, ranks = [], []
    for node_rank, log in enumerate(order):
        teller = _Teller(log, node_rank, layout[log.name], beside)
        stories = teller.lone_process() if lone else teller.ranks()
        ranks += stories
        nodes.append(teller.node(stories))
    told = [log.world_size for log in order if log.world_size]
    world = max((*told, *(story.rank + 1 for story in ranks)), default=None)
    return Case(
        nodes=nodes,
        ranks=sorted(ranks, key=lambda story: story.rank),
        world_size=world,
        watched=bool(beside.ends),
        odd=beside.odd,
    )


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Sort node2 before node10."""
    return tuple((int(part), "") if part.isdigit() else (0, part) for part in re.findall(r"\d+|\D+", name))


def find_layout(logs: Iterable[NodeLog]) -> dict[str, tuple[int, ...]]:
    """Find which ranks ran on which node: as they speak and are listed; gaps are filled where all nodes are alike."""
    logs = list(logs)
    sure = {log.name: set(log.ranks) for log in logs}
    known = {rank for ranks in sure.values() for rank in ranks}
    for log in logs:
        # A rank that only a script's line speaks of, e.g. "step 3 [rank0] loss 0.1".
        sure[log.name] |= {
            rank for rank in log.seen - known if all(rank not in one.seen for one in logs if one is not log)
        }
    starts = {
        log.name: min((claim.rank - claim.local_rank for claim in log.agent.claims), default=None) for log in logs
    }
    begun = sorted((start, name) for name, start in starts.items() if start is not None)
    width = max((len(ranks) for ranks in sure.values()), default=0)
    for (start, name), following in zip(begun, [*begun[1:], None], strict=False):
        if following is not None and following[0] - start <= 2 * width:
            sure[name] |= set(range(start, following[0]))
    return {name: tuple(sorted(ranks)) for name, ranks in sure.items()}


class _Teller:
    """Tells the stories of one node."""

    def __init__(self, log: NodeLog, node_rank: int, ranks: tuple[int, ...], beside: Beside) -> None:
        self._log = log
        self._node_rank = node_rank
        self._ranks = ranks
        self._beside = beside
        self._claims = {claim.rank: claim for claim in _claims(log, ranks)}
        speech = log.speech(ANYONE)
        said = list(speech.utterances) if speech else []
        agent = log.speech(AGENT)
        self._agent_said = [*(agent.utterances if agent else ()), *(one for one in said if one.agent)]
        self._nameless = [one for one in said if not one.agent]

    def ranks(self) -> list[RankStory]:
        """Tell of every rank of the node."""
        given = self._give_away()
        return [self._rank(rank, given.get(rank)) for rank in self._ranks]

    def lone_process(self) -> list[RankStory]:
        """Tell of a node on which one process ran, without an agent."""
        if not self._nameless or self._agent_said:
            return []
        last = self._nameless[-1]
        code, signal = parse_status(self._log.exit_code) if self._log.exit_code is not None else (1, None)
        if code == 0:
            return []
        return [
            RankStory(
                rank=self._node_rank,
                node_rank=self._node_rank,
                local_rank=0,
                code=code,
                signal=signal,
                failure=last.failure,
                hits=last.hits,
                file=self._log.file,
            )
        ]

    def _rank(self, rank: int, nameless: Utterance | None) -> RankStory:
        claim = self._claims.get(rank)
        local = claim.local_rank if claim else rank - min(self._ranks)
        speech = self._log.speech(("rank", rank)) or self._log.speech(("local", local))
        last = speech.utterances[-1] if speech and speech.utterances else nameless
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
        if (end := self._beside.ends.get(rank)) is not None:
            return self._watched(rank, local, end, failure, hits)
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

    def _watched(
        self, rank: int, local: int, end: RankEnd, failure: Failure | None, hits: tuple[Hit, ...]
    ) -> RankStory:
        return RankStory(
            rank=rank,
            node_rank=self._node_rank,
            local_rank=local,
            pid=end.pid,
            code=end.code,
            signal=end.signal,
            time=end.time,
            exact=True,
            stopped=end.after_stop and not end.code,
            failure=failure if end.signal is None or (failure and failure.frames) else None,
            hits=hits,
            oom_kills=end.oom_kills,
            file=self._log.file,
        )

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
        return tuple(
            hit for hit in (speech.loose if speech else ()) if (hit.line or 0) > reported - TAIL and speaks(hit)
        )

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
