"""Says which rank of a watched run broke first, and why: the judge's word, in the form that a verdict carries."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from orchestrator.diagnosis.case import Case, Judgement, RankStory
from orchestrator.diagnosis.events import AgentExit
from orchestrator.diagnosis.exits import signal_name
from orchestrator.diagnosis.history import History
from orchestrator.diagnosis.ladder.judge import judge
from orchestrator.diagnosis.last_look import find_telling, weigh_look
from orchestrator.diagnosis.live import Texts, build_case
from orchestrator.diagnosis.logs.tracebacks import parse_failure
from orchestrator.diagnosis.odd_code import find_odd_code
from orchestrator.light_dataclass import dataclass
from orchestrator.values import Evidence, FirstFailure, RankExit

DISK_FULL = "the disk is full that takes its output (~/.aorta)"
MOST_EVIDENCE = 6
MOST_QUOTED = 16
MANY = 64
OWN_RULES = frozenset({"kernel", "cause", "exception", "hint", "exit"})
"""Rungs that name a rank by its own end and its own words."""
LAST_LINES = 8
LINE_CHARS = 300


@dataclass(frozen=True)
class Explained:
    """What broke first."""

    judgement: Judgement
    first: FirstFailure | None
    evidence: tuple[Evidence, ...] = ()


def explain(history: History, texts: Texts, only: Container[int] | None = None) -> Explained:
    """Find the failure that the others follow from; among these ranks, where not all are asked for."""
    ours = _explain_own(history, texts)
    if ours is not None:
        return ours
    case, judgement = _judge_needed(history, texts, only)
    telling = None
    if judgement.rank is not None and judgement.node_rank is not None:
        telling = find_telling(texts, judgement.rank, judgement.node_rank)
        judgement = weigh_look(judgement, case, telling)
    judgement = find_odd_code(judgement, case, texts, history.plan.script)
    story = next((story for story in case.ranks if story.rank == judgement.rank), None)
    if story is None:
        alike = [story for story in case.ranks if story.rank in judgement.ranks]
        if not alike:
            return _without_rank(judgement, history, texts)
        # All failed of what all were given: none of them is to blame, and any of them shows it.
        story = min(alike, key=lambda story: story.time or 0.0)
        first = replace(_build_first(story, history.exits.get(story.rank), history), rank=None, local_rank=None)
        return Explained(judgement, first, _gather(judgement, texts, story.rank, story.node_rank))
    if judgement.last_lines:
        judgement = replace(judgement, last_lines=read_last_lines(texts, story))
    exit_ = history.exits.get(story.rank)
    first = _build_first(story, exit_, history)
    if exit_ is not None and exit_.disk_full and first.error == DISK_FULL:
        judgement = replace(judgement, family="DISK", cause=DISK_FULL, cause_id="disk.enospc", confidence="likely")
    if story.rank in history.stand_ins and history.plan.nodes[story.node_rank].processes > 1:
        # It is the command of its node that broke: which of its ranks, nobody saw.
        first = replace(first, rank=None, local_rank=None)
    if telling is not None and story.stopped:
        first = replace(first, traceback=first.traceback or telling.place)
    return Explained(judgement, first, _gather(judgement, texts, story.rank, story.node_rank))


def explain_hang(history: History, texts: Texts) -> tuple[str, tuple[Evidence, ...]]:
    """Say whether a run hung before it ran out of time, as far as anything tells it."""
    case = build_case(history, texts)
    if case.odd is not None:
        return f"before that it hung: {case.odd.cause}", case.odd.evidence
    word = judge(case)
    if word.family not in ("HANG", "MISMATCH") or word.rank is None:
        return "", ()
    place = f"rank {word.rank}" + (f" on node {word.node_rank}" if word.node_rank is not None else "")
    said = f"before that it hung: {place}: {word.cause} ({word.reason})"
    return said, tuple(place_all(word.evidence, texts))


def _judge_needed(history: History, texts: Texts, only: Container[int] | None) -> tuple[Case, Judgement]:
    """Judge from as many ranks as it takes: to read the words of a thousand takes seconds."""
    if only is None and history.plan.world_size > MANY:
        # Whoever broke by itself needs no word of the hundreds that were stopped because of it.
        few = build_case(history, texts, {rank for rank, exit_ in history.exits.items() if not exit_.after_stop})
        judgement = judge(few)
        if judgement.rule in OWN_RULES:
            return few, judgement
    case = build_case(history, texts, only)
    return case, judge(case)


def read_last_lines(texts: Texts, story: RankStory) -> tuple[str, ...]:
    """Read what a rank wrote last, where nobody knows the cause."""
    text = texts.rank_out(story.rank) if story.file.endswith(".out") else texts.rank_err(story.rank)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return tuple(line[-LINE_CHARS:] for line in lines[-LAST_LINES:])


def _explain_own(history: History, texts: Texts) -> Explained | None:
    """Explain what happened to our own processes on a node: no rank is to blame."""
    killed = history.supervisors_lost & {history.stop_node}
    if history.stop_cause != "failure" or not killed or history.stop_node is None:
        return None
    word = Judgement(
        family="KILLED",
        rule="supervisor",
        confidence="certain",
        cause=history.stop_detail or "the supervisor was killed, and what ran below it",
        cause_id="rule.supervisor_killed",
        node_rank=history.stop_node,
        reason="its supervisor is gone while the node is up",
        remedy="out of memory, or somebody's clean-up: the kernel log of that node tells; launch again",
    )
    return _without_rank(word, history, texts)


def _without_rank(judgement: Judgement, history: History, texts: Texts) -> Explained:
    """Name the node, where no rank in particular broke."""
    node_rank = judgement.node_rank if judgement.node_rank is not None else history.stop_node
    agent = _first_agent(history, node_rank)
    if agent is not None:
        node_rank, first = agent.node_rank, _build_agent(agent, history, texts)
    elif node_rank is None:
        return Explained(judgement, None)
    else:
        name = history.plan.nodes[node_rank].node.name
        error = history.stop_detail or judgement.cause
        first = FirstFailure(node=name, node_rank=node_rank, time=history.stop_time, error=error)
    if agent is not None and agent.error and judgement.family == "UNKNOWN":
        word = replace(
            judgement,
            rule="agent",
            confidence="certain",
            cause=agent.error,
            reason="the agent did not start there",
            remedy="make sure that every node has that program and the folder it is to start in, or name another one",
        )
        return Explained(word, first, _gather(word, texts, None, node_rank))
    if agent is not None and judgement.family == "UNKNOWN":
        family = "KILLED" if agent.signal else judgement.family
        sure = "certain" if agent.signal else judgement.confidence
        judgement = replace(
            judgement, family=family, rule="agent", confidence=sure, cause=first.error or _ending(first)
        )
    return Explained(judgement, first, _gather(judgement, texts, None, node_rank))


def _first_agent(history: History, node_rank: int | None) -> AgentExit | None:
    bad = [exit_ for exit_ in history.agent_exits.values() if not exit_.clean and not exit_.after_stop]
    here = [exit_ for exit_ in bad if node_rank is None or exit_.node_rank == node_rank]
    return min(here, key=lambda exit_: exit_.time, default=None)


def _build_agent(exit_: AgentExit, history: History, texts: Texts) -> FirstFailure:
    failure = parse_failure(texts.agent_err(exit_.node_rank))
    error = exit_.error or (failure.error if failure and exit_.signal is None else "")
    if exit_.signal is not None:
        error = f"the agent was killed by {signal_name(exit_.signal)}"
    return FirstFailure(
        node=history.plan.nodes[exit_.node_rank].node.name,
        node_rank=exit_.node_rank,
        time=exit_.time,
        exit_code=exit_.code,
        signal=signal_name(exit_.signal),
        error=error,
        traceback=failure.where if failure and not exit_.error else "",
        frames=failure.frames if failure and not exit_.error else (),
    )


def _build_first(story: RankStory, exit_: RankExit | None, history: History) -> FirstFailure:
    failure = story.failure if story.signal is None or (story.failure and story.failure.frames) else None
    error = failure.error if failure and (not story.stopped or failure.frames) else ""
    if exit_ is not None and exit_.disk_full and not (failure and failure.frames):
        # What it wrote last is not what it wanted to say last.
        error = DISK_FULL
    # One that was stopped with the others did not end by itself: how it ended tells nothing.
    ended = not story.stopped
    return FirstFailure(
        node=history.plan.nodes[story.node_rank].node.name,
        node_rank=story.node_rank,
        rank=story.rank,
        local_rank=story.local_rank,
        time=story.time if ended else history.stop_time,
        exit_code=story.code if ended else None,
        signal=signal_name(story.signal) if ended else None,
        error=error,
        traceback=failure.where if failure else "",
        frames=failure.frames if failure else (),
    )


def _ending(first: FirstFailure) -> str:
    if first.signal:
        return f"killed by {first.signal}"
    return f"exit code {first.exit_code}" if first.exit_code is not None else "unknown"


def place_all(evidence: Sequence[Evidence], texts: Texts) -> list[Evidence]:
    """Place what a judge names in the files of the experiment directory, as far as these are there."""
    return [placed for one in evidence if (placed := texts.place(one)) is not None]


def _gather(judgement: Judgement, texts: Texts, rank: int | None, node_rank: int) -> tuple[Evidence, ...]:
    """List the places that show it: those that the judge named, then the files of its rank and node."""
    named = place_all(judgement.evidence, texts)
    known = {evidence.file for evidence in named}
    files: Sequence[str] = [file for file in texts.files(rank, node_rank) if file not in known]
    return (*named, *(Evidence(file=file) for file in files))[:MOST_EVIDENCE]


def quote_first(history: History, texts: Texts) -> Explained | None:
    """Explain what broke first, while the run is still being stopped; None while only consequences are known."""
    ended = sorted(
        (exit_ for exit_ in history.exits.values() if not exit_.clean and not exit_.after_stop),
        key=lambda exit_: exit_.time,
    )
    # Orders wait while we read: a few ranks are enough for what is said again, and better, in a moment.
    told = explain(history, texts, {exit_.rank for exit_ in ended[:MOST_QUOTED]})
    story = history.exits.get(told.first.rank) if told.first and told.first.rank is not None else None
    return told if story is not None and not story.after_stop and told.judgement.family != "UNKNOWN" else None
