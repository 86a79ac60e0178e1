"""The rungs for agents that were not set up to find each other, or to let each other go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.diagnosis.case import Judgement, NodeStory
from orchestrator.diagnosis.cause import Family, Hit
from orchestrator.diagnosis.ladder.agents import best_cause, have
from orchestrator.diagnosis.ladder.facts import Facts, show

SURE_CAUSE = 80
"""An agent with a word of this priority says better than its waiting why it waited."""


def by_setup(facts: Facts) -> Judgement | None:
    """The agents were not set up to find each other, or to let each other go."""
    for rung in (_exit_barrier, _same_node_rank, _each_alone, _world_size, _strange_store, _absent_node):
        judgement = rung(facts)
        if judgement is not None:
            return judgement
    return None


def _setup(
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
    stuck = have(facts, "rdzv.exit_barrier")
    complaining = any(facts.words[story.rank].kind != "none" or story.signal for story in facts.case.ranks)
    if not stuck or complaining or _any_rank_failed(facts):
        return None
    return _setup(
        stuck,
        rule="exit barrier",
        cause="the work was done, but the agents never let each other go",
        cause_id="rule.exit_barrier",
        node_rank=stuck[0][0].node_rank,
        reason=f"the agent of {stuck[0][0].name} waited at the end for an agent that never came, and no rank failed",
        remedy="compare the clocks of the nodes (more than 15 s apart breaks it) and the number of nodes that each agent was given",
    )


def _same_node_rank(facts: Facts) -> Judgement | None:
    keys = [(node, hit) for node, hit in have(facts, "rdzv.keys") if "torchelastic/" in hit.text]
    waits = Counter(hit.groups.get("keys", "") for _, hit in keys if "assigned_ranks/" in hit.text)
    twice = [(node, hit) for node, hit in keys if waits[hit.groups.get("keys", "")] > 1]
    if not keys or not (twice or any("role_info/" in hit.text for _, hit in keys)):
        return None
    names = " and ".join(node.name for node, _ in twice) or "two agents"
    return _setup(
        twice or keys,
        rule="keys",
        cause=f"{names} were started with the same node rank",
        cause_id="rule.node_rank",
        node_rank=twice[0][0].node_rank if twice else None,
        reason="they wait for the same place in the agents' table, and another place stays empty",
        remedy="give every node its own node rank, from 0 on; a launcher that counts them itself cannot do it wrong",
    )


def _each_alone(facts: Facts) -> Judgement | None:
    late = have(facts, "rdzv.join_timeout")
    nodes = {node.node_rank for node, _ in late}
    everyone = len(nodes) == len(facts.case.nodes)
    if len(nodes) <= 1 or not everyone or _any_rank(facts):
        return None
    return _setup(
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
    came, want = int(hit.groups["have"]), int(hit.groups["want"])
    here = len(facts.case.ranks)
    if came != here or want <= came:
        return None
    return Judgement(
        family="CONFIG",
        rule="world size",
        confidence="likely",
        cause=f"{want} ranks were expected, and only {came} exist",
        cause_id="rule.world_size",
        node_rank=story.node_rank,
        reason=f"{came} of {want} came, and that is every rank that there is a word of",
        evidence=show(story, hit),
        remedy="do not set WORLD_SIZE by hand: it has to be the number of nodes times the ranks of each",
    )


def _strange_store(facts: Facts) -> Judgement | None:
    lost = have(facts, "rdzv.conn_lost")
    nodes = {node.node_rank for node, _ in lost}
    if (
        len(nodes) < len(facts.case.nodes)
        or len(nodes) <= 1
        or _any_rank(facts)
        or any(node.ranks for node in facts.case.nodes)
    ):
        return None
    return _setup(
        lost,
        rule="strange store",
        cause="the agents had joined the rendezvous of another run",
        cause_id="rule.strange_store",
        reason="none of them started a rank, and all of them lost the store at once: none of them had opened it",
        remedy="give every launch a run id and a port of its own",
    )


def _absent_node(facts: Facts) -> Judgement | None:
    waited = [*have(facts, "rdzv.clients"), *have(facts, "rdzv.join_timeout")]
    if not waited or _any_rank(facts) or best_cause(facts, above=SURE_CAUSE):
        return None
    node, hit = waited[0]
    missing = [one for one in facts.case.nodes if not one.heard]
    here, want = hit.groups.get("have"), hit.groups.get("want")
    count = f": {here} of {want} came" if here and want else ""
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
