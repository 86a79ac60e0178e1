"""The rungs for nodes: what agents say before any rank fails, who told them to end, which node just stops to speak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.diagnosis.case import Judgement, NodeStory
from orchestrator.diagnosis.cause import Hit
from orchestrator.diagnosis.exits import signal_name
from orchestrator.diagnosis.ladder.facts import KILL, TERM, Facts, list_ranks, show, told
from orchestrator.diagnosis.logs.speech import is_telling

MOST_NAMED = 4
LEAST_PRINTED = 3
OF_ALL = frozenset({"time.scheduler", "time.preempted"})
"""Said of a whole job: no node is to blame."""


def have(facts: Facts, cause_id: str) -> list[tuple[NodeStory, Hit]]:
    """List the agents that say it, and where."""
    return [(node, hit) for node in facts.case.nodes for hit in node.hits if hit.cause.id == cause_id]


def best_cause(facts: Facts, above: int = 0) -> tuple[NodeStory, Hit] | None:
    """Give the strongest word of any agent about itself."""
    said = [
        (node, hit)
        for node in facts.case.nodes
        for hit in node.hits
        if hit.cause.role == "cause"
        and is_telling(hit)
        and hit.cause.priority > above
        and hit.cause.family != "SESSION"
    ]
    return max(said, key=lambda one: (one[1].cause.priority, -one[0].node_rank), default=None)


def by_agent_cause(facts: Facts) -> Judgement | None:
    """An agent, or a program in its place, says why it could not go on."""
    best = best_cause(facts)
    if best is None or (best[0].agent_code == 0 and not _only_printed(best[0])):
        return None
    node, hit = best
    alike = [one for one in facts.case.nodes if any(other.cause.id == hit.cause.id for other in one.hits)]
    cause, remedy, cause_id = told(hit)
    everyone = len(alike) == len(facts.case.nodes) > 1
    return Judgement(
        family=hit.cause.family,
        rule="agent",
        confidence="likely",
        cause=cause,
        cause_id=cause_id,
        node_rank=None
        if cause_id in OF_ALL
        else min(alike, key=lambda one: one.node_rank).node_rank
        if everyone
        else node.node_rank,
        reason=_say_who(facts, "all nodes say" if everyone else f"{node.name} says", cause_id),
        evidence=show(node, hit),
        remedy=remedy,
    )


def _say_who(facts: Facts, who: str, cause_id: str) -> str:
    if cause_id in OF_ALL:
        return "the scheduler's own line says so"
    known = facts.case.watched or facts.case.ranks
    return f"{who} so before any rank failed" if known else f"{who} so; which rank it was is not told"


def _only_printed(node: NodeStory) -> bool:
    """Tell whether a log that ends with code 0 holds nothing but what went wrong."""
    causes = {hit.text for hit in node.hits if hit.cause.role == "cause" and is_telling(hit)}
    return not node.ranks and len(causes) >= LEAST_PRINTED


def by_session(facts: Facts) -> Judgement | None:
    """An agent was told to end by somebody."""
    told_by = [(node, hit) for node, hit in have(facts, "rdzv.signal") if node.agent_code != 0]
    if not told_by:
        return None
    numbers = {node.node_rank: int(hit.groups.get("sig") or hit.groups.get("sig2") or TERM) for node, hit in told_by}
    everyone = len(numbers) == len(facts.case.nodes)
    asked = set(numbers.values()) == {TERM}
    hurt = {story.node_rank for story in facts.victims}
    if asked and (hurt & numbers.keys() or (hurt and everyone)):
        # Whoever stops a run that broke does the same.
        return None
    quiet = [node for node in facts.case.nodes if node.node_rank not in numbers and not node.closed]
    if asked and len(quiet) == 1:
        return _judge_quiet(facts, quiet[0], told_by)
    return _judge_signal(facts, told_by, numbers, together=asked and everyone)


def _judge_signal(
    facts: Facts, told_by: Sequence[tuple[NodeStory, Hit]], numbers: Mapping[int, int], *, together: bool
) -> Judgement:
    node, hit = told_by[0]
    cause, remedy, cause_id = told(hit)
    if together and not facts.case.watched:
        return Judgement(
            family="INFO",
            rule="session",
            confidence="unknown",
            cause="stopped from outside: every agent got SIGTERM",
            cause_id=cause_id,
            reason="no rank says that it failed; how the ranks ended is not told",
            evidence=show(node, hit),
            remedy="if nobody stopped it, look in the launcher's own log for what it saw",
        )
    return Judgement(
        family="SESSION",
        rule="session",
        confidence="likely",
        cause=cause,
        cause_id=cause_id,
        node_rank=node.node_rank,
        reason=f"the agent of {node.name} got {signal_name(numbers[node.node_rank])} before any rank failed",
        evidence=show(node, hit),
        remedy=remedy,
    )


def _judge_quiet(facts: Facts, node: NodeStory, told_by: Sequence[tuple[NodeStory, Hit]]) -> Judgement:
    """Judge a run in which one node just stops to speak while all others are told to end."""
    names = ", ".join(one.name for one, _ in told_by[:MOST_NAMED])
    return Judgement(
        family="NODE_LOST",
        rule="stops",
        confidence="unknown",
        cause=f"the log of {node.name} just stops",
        cause_id="rule.node_lost",
        node_rank=node.node_rank,
        reason=f"the agents were stopped on {names}; of {facts.name(node.node_rank)} there is no word of an end",
        evidence=show(node),
        remedy="look whether that node is up, since when, and what its kernel says: power, reboot, memory",
    )


def by_lost_node(facts: Facts) -> Judgement | None:
    """The log of a node just stops while others lose their peers."""
    gone = [node for node in facts.case.nodes if node.lost or (node.heard and not node.closed)]
    away = [node for node in facts.case.nodes if node not in gone]
    lost_peers = [story for story in facts.victims if story.node_rank not in {node.node_rank for node in gone}]
    lost_store = [node for node, _ in have(facts, "rdzv.conn_lost") if node in away]
    told_ends = any(one.agent_code is not None or one.agent_signal is not None or one.lost for one in facts.case.nodes)
    # Where no log tells how its agent ended, a quiet end alone is what a good one looks like.
    if len(gone) != 1 or not (lost_store or (lost_peers and told_ends)):
        return None
    node = gone[0]
    who = list_ranks(story.rank for story in lost_peers) if lost_peers else f"the agent of {lost_store[0].name}"
    how = "was killed" if node.agent_signal == KILL else "just stops"
    return Judgement(
        family="NODE_LOST",
        rule="stops",
        confidence="likely",
        cause=f"node {node.name} was lost{f': {node.lost}' if node.lost else ''}",
        cause_id="rule.node_lost",
        node_rank=node.node_rank,
        reason=f"its log {'ends' if how == 'was killed' else how} without a report, its agent {how}; {who} lost it"
        if how == "was killed"
        else f"its log {how} without a report; {who} lost it",
        evidence=show(node),
        remedy="look whether that node is up, since when, and what its kernel says: power, reboot, memory",
    )
