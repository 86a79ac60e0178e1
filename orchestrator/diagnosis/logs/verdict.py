"""From a judged case of logs to the verdict that is shown: nobody watched, so that it tells no more than the logs do."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.diagnosis.case import Case, Judgement, RankStory
from orchestrator.diagnosis.exits import signal_name
from orchestrator.diagnosis.ladder.facts import NO_SIGN
from orchestrator.diagnosis.logs.nodelog import AGENT, ANYONE, NodeLog
from orchestrator.diagnosis.logs.torchrun_words import signal_of
from orchestrator.values import Evidence, Exit, FirstFailure, Verdict

MOST_EVIDENCE = 6
NO_NODE = -1
"""The node rank of a rank that nothing tells the node of."""


def build_foreign_verdict(case: Case, judgement: Judgement, logs: Sequence[NodeLog] = ()) -> Verdict:
    """Build the verdict of a run that there are only logs of."""
    if judgement.family == "OK":
        return Verdict(
            state="succeeded",
            exit_code=int(Exit.DONE),
            cause=judgement.cause,
            family="OK",
            confidence=judgement.confidence,
            rule=judgement.rule,
            reason=judgement.reason,
        )
    culprits = {*judgement.ranks, judgement.rank}
    return Verdict(
        state="failed",
        exit_code=int(Exit.FAILED),
        cause=judgement.cause,
        family=judgement.family,
        cause_id=judgement.cause_id,
        rule=judgement.rule,
        reason=judgement.reason,
        confidence=judgement.confidence,
        ranks=judgement.ranks if len(judgement.ranks) > 1 else (),
        last_lines=_last_lines(case, judgement, logs),
        first_failure=_build_first(case, judgement),
        stopped=()
        if judgement.rule == NO_SIGN
        else tuple(story.rank for story in case.ranks if story.rank not in culprits and story.code != 0),
        evidence=_gather(case, judgement),
        remedy=judgement.remedy,
    )


def _build_first(case: Case, judgement: Judgement) -> FirstFailure | None:
    if judgement.node_rank is None and judgement.rank is None:
        return None
    node_rank = judgement.node_rank if judgement.node_rank is not None else NO_NODE
    node = next((node for node in case.nodes if node.node_rank == node_rank), None)
    name = node.name if node is not None else ""
    story = next((story for story in case.ranks if story.rank == judgement.rank), None)
    if story is None:
        code = node.agent_code if node is not None else None
        signal = node.agent_signal if node is not None else None
        return FirstFailure(
            node=name,
            node_rank=node_rank,
            rank=judgement.rank,
            exit_code=code,
            signal=signal_name(signal),
            error=judgement.cause,
        )
    failure = story.failure
    ended = signal_of(story.code, story.signal)
    return FirstFailure(
        node=name,
        node_rank=story.node_rank,
        rank=story.rank,
        local_rank=story.local_rank,
        time=story.time,
        exit_code=None if story.stopped else story.code,
        signal=None if story.stopped else signal_name(ended),
        error=_error(story, judgement),
        traceback=failure.where if failure else "",
        frames=failure.frames if failure else (),
    )


def _error(story: RankStory, judgement: Judgement) -> str:
    if story.failure is not None and judgement.rule not in ("kernel", "exit"):
        return story.failure.error
    return judgement.cause if story.failure is None else story.failure.error


def _gather(case: Case, judgement: Judgement) -> tuple[Evidence, ...]:
    named = judgement.evidence
    files = [node.file for node in case.nodes if node.node_rank == judgement.node_rank and node.file]
    known = {one.file for one in named}
    return (*named, *(Evidence(file=file) for file in files if file not in known))[:MOST_EVIDENCE]


def _last_lines(case: Case, judgement: Judgement, logs: Sequence[NodeLog]) -> tuple[str, ...]:
    """Give what the culprit wrote last, where that is all that is known."""
    if judgement.family != "UNKNOWN" and not judgement.last_lines:
        return ()
    first = (
        judgement.node_rank if judgement.node_rank is not None else min((n.node_rank for n in case.nodes), default=0)
    )
    name = next((node.name for node in case.nodes if node.node_rank == first), "")
    log = next((log for log in logs if log.name == name), None)
    if log is None:
        return judgement.last_lines
    speech = log.speech(("rank", judgement.rank)) if judgement.rank is not None else None
    speech = speech or log.speech(ANYONE) or log.speech(AGENT)
    return tuple(speech.last_lines) if speech else judgement.last_lines
