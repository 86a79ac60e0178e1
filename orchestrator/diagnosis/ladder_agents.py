"""The rungs for nodes: what agents say before any rank runs, how they were set up, how they and their nodes end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.diagnosis.case import Judgement, NodeStory
from orchestrator.diagnosis.cause import Family, Hit
from orchestrator.diagnosis.ladder_facts import Facts, list_ranks, show, told
from orchestrator.diagnosis.speech import is_telling

KILL, TERM = 9, 15
OUR_LIMIT = 124
"""What `timeout` and many launchers give when a limit of time is reached."""


def by_setup(facts: Facts) -> Judgement | None:
    """The agents were not set up to find each other, or to let each other go."""
    for rung in (_exit_barrier, _same_node_rank, _each_alone, _world_size, _strange_store, _absent_node):
        judgement = rung(facts)
        if judgement is not None:
            return judgement
    return None


def _have(facts: Facts, cause_id: str) -> list[tuple[NodeStory, Hit]]:
    return [(node, hit) for node in facts.case.nodes for hit in node.hits if hit.cause.id == cause_id]


def _setup(
    facts: Facts,
    told_by: Sequence[tuple[NodeStory, Hit]],
    *,
    rule: str,
    cause: str,
    cause_id: str,
    reason: str,
    remedy: str,
    family: Family = "CONFIG",
    node_rank: int | None = None,
) -> Judgement:
    del facts
    return Judgement(
        family=family,
        rule=rule,
        confidence="likely",
        cause=cause,
        cause_id=cause_id,
        node_rank=node_rank,
        reason=reason,
        evidence=tuple(place for node, hit in told_by[:3] for place in show(node, hit)),
        remedy=remedy,
    )


def _exit_barrier(facts: Facts) -> Judgement | None:
    stuck = _have(facts, "rdzv.exit_barrier")
    complaining = any(facts.words[story.rank].kind != "none" or story.signal for story in facts.case.ranks)
    if not stuck or complaining or _any_rank_failed(facts):
        return None
    return _setup(
        facts,
        stuck,
        rule="exit barrier",
        cause="the work was done, but the agents never let each other go",
        cause_id="rule.exit_barrier",
        node_rank=stuck[0][0].node_rank,
        reason=f"the agent of {stuck[0][0].name} waited at the end for an agent that never came, and no rank failed",
        remedy="compare the clocks of the nodes (more than 15 s apart breaks it) and the number of nodes that each agent was given",
    )


def _same_node_rank(facts: Facts) -> Judgement | None:
    keys = [(node, hit) for node, hit in _have(facts, "rdzv.keys") if "torchelastic/" in hit.text]
    waits = Counter(hit.groups.get("keys", "") for _, hit in keys if "assigned_ranks/" in hit.text)
    twice = [(node, hit) for node, hit in keys if waits[hit.groups.get("keys", "")] > 1]
    if not keys or not (twice or any("role_info/" in hit.text for _, hit in keys)):
        return None
    names = " and ".join(node.name for node, _ in twice) or "two agents"
    return _setup(
        facts,
        twice or keys,
        rule="keys",
        cause=f"{names} were started with the same node rank",
        cause_id="rule.node_rank",
        node_rank=twice[0][0].node_rank if twice else None,
        reason="they wait for the same place in the agents' table, and another place stays empty",
        remedy="give every node its own node rank, from 0 on; a launcher that counts them itself cannot do it wrong",
    )


def _each_alone(facts: Facts) -> Judgement | None:
    late = _have(facts, "rdzv.join_timeout")
    nodes = {node.node_rank for node, _ in late}
    everyone = len(nodes) == len(facts.case.nodes)
    if len(nodes) <= 1 or not everyone or _any_rank(facts):
        return None
    return _setup(
        facts,
        late,
        rule="each alone",
        cause="every agent waited for the others, each in a rendezvous of its own",
        cause_id="rule.each_alone",
        reason=f"all {len(nodes)} agents ran, and each gave up waiting for the others",
        remedy="name the head by an address that all nodes reach: localhost is another machine on each of them",
    )


def _any_rank_failed(facts: Facts) -> bool:
    return any(story.failure is not None or story.code for story in facts.case.ranks)


def _any_rank(facts: Facts) -> bool:
    return any(story.failure is not None or story.code is not None for story in facts.case.ranks)


def _world_size(facts: Facts) -> Judgement | None:
    short = [
        (story, hit)
        for story in facts.case.ranks
        for hit in story.hits
        if hit.cause.id == "rdzv.clients" and hit.groups.get("have", "").isdigit()
    ]
    if not short:
        return None
    story, hit = short[0]
    have, want = int(hit.groups["have"]), int(hit.groups["want"])
    here = len(facts.case.ranks)
    if have != here or want <= have:
        return None
    return Judgement(
        family="CONFIG",
        rule="world size",
        confidence="likely",
        cause=f"{want} ranks were expected, and only {have} exist",
        cause_id="rule.world_size",
        node_rank=story.node_rank,
        reason=f"{have} of {want} came, and that is every rank that there is a word of",
        evidence=show(story, hit),
        remedy="do not set WORLD_SIZE by hand: it has to be the number of nodes times the ranks of each",
    )


def _strange_store(facts: Facts) -> Judgement | None:
    lost = _have(facts, "rdzv.conn_lost")
    nodes = {node.node_rank for node, _ in lost}
    if (
        len(nodes) < len(facts.case.nodes)
        or len(nodes) <= 1
        or _any_rank(facts)
        or any(node.ranks for node in facts.case.nodes)
    ):
        return None
    return _setup(
        facts,
        lost,
        rule="strange store",
        cause="the agents had joined the rendezvous of another run",
        cause_id="rule.strange_store",
        reason="none of them started a rank, and all of them lost the store at once: none of them had opened it",
        remedy="give every launch a run id and a port of its own",
    )


def _absent_node(facts: Facts) -> Judgement | None:
    waited = [*_have(facts, "rdzv.clients"), *_have(facts, "rdzv.join_timeout")]
    if not waited or _any_rank(facts) or _best_cause(facts, above=80):
        return None
    node, hit = waited[0]
    missing = [one for one in facts.case.nodes if not one.heard]
    have, want = hit.groups.get("have"), hit.groups.get("want")
    count = f": {have} of {want} came" if have and want else ""
    return Judgement(
        family="RDZV",
        rule="absence",
        confidence="likely",
        cause=f"{missing[0].name if missing else 'another node'} never came to the rendezvous{count}",
        cause_id="rule.not_joined",
        node_rank=missing[0].node_rank if missing else None,
        reason=f"the agent of {node.name} waited for it in vain, and there is no word of it",
        evidence=show(node, hit),
        remedy="look whether the agent of that node was started, and whether it reaches the head's port",
    )


def _best_cause(facts: Facts, above: int = 0) -> tuple[NodeStory, Hit] | None:
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
    best = _best_cause(facts)
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
        node_rank=min(alike, key=lambda one: one.node_rank).node_rank if everyone else node.node_rank,
        reason=f"{'all nodes say' if everyone else f'{node.name} says'} so before any rank failed",
        evidence=show(node, hit),
        remedy=remedy,
    )


def _only_printed(node: NodeStory) -> bool:
    """Tell whether a log that ends with code 0 holds nothing but what went wrong."""
    causes = {hit.text for hit in node.hits if hit.cause.role == "cause" and is_telling(hit)}
    return not node.ranks and len(causes) >= LEAST_PRINTED


LEAST_PRINTED = 3


def by_session(facts: Facts) -> Judgement | None:
    """An agent was told to end by somebody."""
    told_by = [(node, hit) for node, hit in _have(facts, "rdzv.signal") if node.agent_code != 0]
    if not told_by:
        return None
    numbers = {node.node_rank: int(hit.groups.get("sig") or hit.groups.get("sig2") or TERM) for node, hit in told_by}
    hurt = {story.node_rank for story in facts.victims}
    if set(numbers.values()) == {TERM} and (hurt & numbers.keys() or (hurt and len(numbers) == len(facts.case.nodes))):
        # Whoever stops a run that broke does the same.
        return None
    together = len(numbers) == len(facts.case.nodes) and set(numbers.values()) == {TERM}
    node, hit = told_by[0]
    cause, remedy, cause_id = told(hit)
    return Judgement(
        family="INFO" if together and not facts.case.watched else "SESSION",
        rule="session",
        confidence="likely",
        cause=cause if not together else "stopped from outside: every agent got SIGTERM",
        cause_id=cause_id,
        node_rank=None if together and len(facts.case.nodes) > 1 else node.node_rank,
        reason="no rank had failed before"
        if together
        else f"the agent of {node.name} got signal {numbers[node.node_rank]}",
        evidence=show(node, hit),
        remedy=remedy,
    )


def by_lost_node(facts: Facts) -> Judgement | None:
    """The log of a node just stops while others lose their peers."""
    gone = [node for node in facts.case.nodes if node.lost or (node.heard and not node.closed)]
    away = [node for node in facts.case.nodes if node not in gone]
    lost_peers = [story for story in facts.victims if story.node_rank not in {node.node_rank for node in gone}]
    lost_store = [node for node, _ in _have(facts, "rdzv.conn_lost") if node in away]
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
