"""A run that we watched, in the form in which any run is judged: its history, and the texts that it left."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.diagnosis.case import Case, NodeStory, Odd, RankStory
from orchestrator.diagnosis.cause import Hit
from orchestrator.diagnosis.history import History
from orchestrator.diagnosis.logs.nodelog import last_words
from orchestrator.diagnosis.logs.scan import scan_text
from orchestrator.diagnosis.logs.speech import NEAR, Speech, Utterance
from orchestrator.diagnosis.logs.tracebacks import Failure, parse_blame, parse_error_file, parse_last_line
from orchestrator.light_dataclass import dataclass
from orchestrator.values import Evidence, NodePlan, RankExit

SHELL_SIGNALS = 128
"""From here on an exit code tells of a signal: 143 is what a handler of TERM gives."""
STOPPED_TAIL = 1 << 13
"""Bytes of the last words of a rank that did not end by itself."""
CANCELLED = "nccl.abort"
WINDOW_S = 5.0
"""A consequence can be told sooner than its cause: the cause's interpreter is still closing down."""


@dataclass(frozen=True)
class Texts:
    """What is known in words: readers of the last bytes, empty where there is nothing."""

    rank_err: Callable[[int], str]
    rank_out: Callable[[int], str]
    rank_error_file: Callable[[int], bytes]
    agent_err: Callable[[int], str]
    node_evidence: Callable[[int], Mapping[str, Any]]
    """What a node wrote down of itself when the run broke."""
    files: Callable[[int | None, int], tuple[str, ...]]
    """(rank, node rank) -> the files of the experiment directory that tell of them."""
    place: Callable[[Evidence], Evidence | None]
    """A line of a tail -> the same line of the whole file; None where there is no such file."""

    def evidence(self, rank: int | None, node_rank: int) -> tuple[Evidence, ...]:
        """List the files that tell of a rank, or of a node."""
        return tuple(Evidence(file=file) for file in self.files(rank, node_rank))


def build_case(history: History, texts: Texts, only: Container[int] | None = None) -> Case:
    """Put together what is known of a run that we watched; of these ranks alone, where not all are asked for."""
    stories = {
        rank: story
        for node in history.plan.nodes
        for rank in node.ranks
        if only is None or rank in only
        if (story := _build_rank(history, texts, node, rank)) is not None
    }
    stories.update((story.rank, story) for story in _blamed(history, texts))
    return Case(
        nodes=[_build_node(history, texts, node) for node in history.plan.nodes],
        ranks=[stories[rank] for rank in sorted(stories)],
        world_size=history.plan.world_size,
        node_count=len(history.plan.nodes),
        watched=True,
        odd=build_odd(history.hang),
    )


def build_odd(hang: Mapping[str, Any] | None) -> Odd | None:
    """Build what a report of a hang said of the ranks that do something else."""
    if hang is None or not hang.get("family"):
        return None
    return Odd(
        family=hang["family"],
        ranks=tuple(hang.get("ranks") or ()),
        rule=hang.get("rule") or "stacks",
        confidence=hang.get("confidence") or "unknown",
        cause=str(hang.get("cause", "")),
        where=str(hang.get("where", "")),
        evidence=tuple(Evidence(file=one["file"], line=one.get("line")) for one in hang.get("evidence") or ()),
    )


def _build_rank(history: History, texts: Texts, node: NodePlan, rank: int) -> RankStory | None:
    exit_ = history.exits.get(rank)
    if exit_ is None and rank not in history.seen:
        return None
    stopped = exit_ is None or _was_stopped(exit_, history)
    # One that ended well has no last words, and of a thousand that were stopped a few lines are enough.
    size = 0 if exit_ is not None and exit_.clean else STOPPED_TAIL if stopped else None
    failure, file, hits = read_words(texts, rank, size)
    story = RankStory(
        rank=rank,
        node_rank=node.node_rank,
        local_rank=rank - node.first_rank,
        stopped=stopped,
        failure=failure,
        hits=hits,
        file=file,
    )
    if exit_ is None:  # its end was missed, or its node is away
        return story
    return replace(
        story,
        local_rank=exit_.local_rank,
        pid=exit_.pid,
        code=exit_.code,
        signal=exit_.signal,
        time=exit_.time,
        exact=True,
        late=exit_.after_stop,
        # A rank that was killed did not say why: its last line is about something else.
        failure=failure if exit_.signal is None or (failure and failure.frames) else None,
        oom_kills=exit_.oom_kills,
    )


def _was_stopped(exit_: RankExit, history: History) -> bool:
    if not exit_.after_stop:
        return False
    # An exception that was under way when the first rank's end made us stop everyone.
    in_time = exit_.time <= (history.stop_time or 0.0) + WINDOW_S
    return not (in_time and exit_.code and exit_.code < SHELL_SIGNALS)


def read_words(texts: Texts, rank: int, size: int | None = None) -> tuple[Failure | None, str, tuple[Hit, ...]]:
    """Read what a rank said last: its exception, the file that holds it, and what the catalogue knows of it."""
    if size == 0:
        return None, f"logs/rank_{rank:04d}.err", ()
    err = _shorten(texts.rank_err(rank), size)
    told = parse_error_file(texts.rank_error_file(rank))
    failure, hits = _say(err)
    if failure is None and not hits:
        # Many a script says why it stops on stdout alone.
        out = _shorten(texts.rank_out(rank), size)
        failure, hits = _say(out)
        if failure is not None or hits or not err.strip():
            return told or failure or parse_last_line(out), f"logs/rank_{rank:04d}.out", hits
    return told or failure or parse_last_line(err), f"logs/rank_{rank:04d}.err", hits


def _shorten(text: str, size: int | None) -> str:
    """Leave of all but the end of a text nothing but its line ends: lines keep their numbers."""
    if size is None or len(text) <= size:
        return text
    return "\n" * text.count("\n", 0, len(text) - size) + text[-size:]


def _say(text: str) -> tuple[Failure | None, tuple[Hit, ...]]:
    """Give the last exception of a text with what belongs to it; without one whatever the catalogue knows."""
    speech = last_words(text)
    last = speech.utterances[-1] if speech.utterances else None
    if last is not None and not speech.went_on(last):
        return last.failure, (*_said_before(speech, last), *last.hits)
    # What was caught and told for the record, and what lies far back, is not what a rank ended of.
    begin = max(speech.last - NEAR, last.end if last is not None else 0)
    return None, tuple(hit for hit in speech.loose if (hit.line or 0) > begin)


def _said_before(speech: Speech, last: Utterance) -> tuple[Hit, ...]:
    """Give what was said before an exception that only tells of a collective which the rank itself had cancelled."""
    if not any(hit.cause.id == CANCELLED for hit in last.hits):
        return ()
    return tuple(hit for hit in speech.loose if last.start - NEAR <= (hit.line or 0) < last.start)


def _build_node(history: History, texts: Texts, node: NodePlan) -> NodeStory:
    agent = history.agent_exits.get(node.node_rank)
    ours = agent is not None and not agent.after_stop
    stopped = history.stop_cause is not None
    told = texts.node_evidence(node.node_rank)
    kernel = list(told.get("kernel") or ())
    lines = "\n".join(" ".join(str(text).split()) for _, text in kernel)
    return NodeStory(
        node_rank=node.node_rank,
        name=node.node.name,
        ranks=tuple(node.ranks),
        agent_code=agent.code if agent and ours else None,
        agent_signal=agent.signal if agent and ours else None,
        agent_time=agent.time if agent and ours else None,
        lost=history.lost.get(node.node_rank, ""),
        # An agent that we ended tells of our own signal.
        hits=scan_text(texts.agent_err(node.node_rank)) if ours or not stopped else (),
        kernel=tuple(_with_age(hit, kernel) for hit in scan_text(lines, kernel=True)) if lines else (),
        # Named where it could be read at all: that it holds nothing is an answer too.
        kernel_file=f"diagnosis/node_{node.node_rank}.kernel.txt" if told and not told.get("kernel_why") else "",
        file=f"logs/agent_{node.node_rank}.err",
    )


def _with_age(hit: Hit, kernel: Sequence[tuple[float, str]]) -> Hit:
    """Say how many seconds before the node was asked its kernel said it."""
    age_s = kernel[(hit.line or 1) - 1][0]
    return replace(hit, groups={**hit.groups, "age_s": str(age_s)})


def _blamed(history: History, texts: Texts) -> Iterator[RankStory]:
    """Give the ranks that their agent blames, where the ends of its ranks were missed."""
    for node in history.plan.nodes:
        agent = history.agent_exits.get(node.node_rank)
        ends = [history.exits[rank] for rank in node.ranks if rank in history.exits]
        missed = not any(end.signal is not None or end.code for end in ends if not end.after_stop)
        if agent is None or agent.clean or agent.after_stop or not missed:
            continue
        blame = parse_blame(texts.agent_err(node.node_rank))
        if blame is None or blame.rank not in node.ranks:
            continue
        failure, file, hits = read_words(texts, blame.rank)
        yield RankStory(
            rank=blame.rank,
            node_rank=node.node_rank,
            local_rank=blame.local_rank,
            code=blame.code,
            signal=blame.signal,
            time=agent.time,
            failure=failure,
            hits=hits,
            file=file,
        )
