"""Before a start: ask every node for its facts, prove the addresses, judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts, parse_facts
from orchestrator.light_dataclass import dataclass
from orchestrator.nodeline import is_numeric
from orchestrator.phases.addresses import (
    Place,
    PortHold,
    Proof,
    prove_addresses,
)
from orchestrator.phases.foreseen import is_far
from orchestrator.phases.script import ask_of_node, ask_of_script
from orchestrator.phases.workdir import folder_words
from orchestrator.settings import Settings
from orchestrator.transport import Channel, Link
from orchestrator.transport.answers import read_frame
from orchestrator.transport.fanout import fan_out, nobody
from orchestrator.transport.porter import TELL_TIME
from orchestrator.values import EnvValue

__all__ = ["Place", "PortHold", "Proof", "probe_nodes", "prove_addresses"]

CLOCK_ROUNDS = 5
CLOSE_S = 0.001
"""A clock that is known so well at once is asked no more; after further rounds a little less is enough. A run's log
lines are put in order by it."""
CLOCK_SHARE = 0.1
"""Of the difference that would be told: that is enough where nothing is to run."""
FOR_CHECKS = ("system.load", "system.stuck", "system.troubles", "system.mounts", "system.shm")
"""Groups of facts that nothing but checks looks at; some of them watch the node for a while."""
PROBE_S = 45.0
"""More than the probe's own limits together; they hold on the node."""


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """What one node answered, as it came and as facts."""

    raw: Mapping[str, Any]
    clock: tuple[float, float]
    """How far the node's clock is ahead of ours, and how wrong that can be, in seconds."""
    took_s: float
    """From the question to the answer, as in the facts."""
    facts: Facts


def probe_nodes(
    links: Sequence[Link],
    settings: Settings,
    done: Callable[[int], None] = nobody,
    env: Sequence[EnvValue] = (),
    ahead: Callable[[int, Link], None] = lambda _rank, _link: None,
    *,
    for_run: bool = True,
) -> list[NodeAnswer]:
    """Ask all nodes at the same time; afterwards each link knows which Python runs our own programs.

    What is to go before the question to a node is sent by `ahead`.

    Raises:
        NodeError: a node has no usable Python, or its answer is odd.
        LinkLostError: a node does not answer.
    """
    head = links[0].node
    routes = [address for address in (head.addr or head.host,) if is_numeric(address)]
    # What is the same for all is found once: in a thread each look at a file waits for its turn among all nodes.
    project = {**ask_of_script(settings, env), **folder_words(settings)}
    close_s = clock_needed_s(settings, for_run=for_run)

    def probe(item: tuple[int, Link]) -> NodeAnswer:
        ahead(*item)
        return _probe_node(*item, settings, routes, project, close_s)

    return fan_out(probe, list(enumerate(links)), settings.fanout, done)


def clock_needed_s(settings: Settings, *, for_run: bool) -> float:
    """Choose how well a node's clock is to be known: each round more costs time of the launch host."""
    return CLOSE_S if for_run else threshold(settings, "clock", "warn_s") * CLOCK_SHARE


def _probe_node(
    node_rank: int, link: Link, settings: Settings, routes: list[str], project: Mapping[str, Any], close_s: float
) -> NodeAnswer:
    request: dict[str, Any] = {
        **ask_of_node(project, link.node),
        "python": link.node.python,
        "launch_python": settings.python,
        "conda_env": settings.conda_env,
        "routes": routes,
        "require_commands": settings.require_commands,
        "without": () if settings.check else FOR_CHECKS,
    }
    began = time.monotonic()
    channel = link.open("probe", request)
    try:
        answer, clock = _ask_probe(channel, link, close_s)
    finally:
        channel.close()
    took_s = round(time.monotonic() - began, 3)
    facts = replace(parse_facts(node_rank, answer, clock, link.node.name), answer_s=took_s)
    if facts.control_python:
        link.pythons = (facts.control_python,)
    return NodeAnswer(raw=answer, clock=clock, took_s=took_s, facts=facts)


def _ask_probe(channel: Channel, link: Link, close_s: float) -> tuple[Mapping[str, Any], tuple[float, float]]:
    """Take the answer, and how far the node's clock is ahead of ours, with how wrong that can be."""
    where = link.node.name
    answer: Mapping[str, Any] = {}
    if is_far(link):
        # Each round would cost as much again: what comes by itself has to do.
        answer = read_frame(channel, where, PROBE_S).header
        return answer, estimate_clock(float(answer.get("clock", 0.0)), time.time(), link.round_trip_s)
    rounds: list[tuple[float, float]] = []
    while len(rounds) < CLOCK_ROUNDS and all(error_s > close_s * len(rounds) for _, error_s in rounds):
        sent = time.time()
        channel.send(TELL_TIME)
        # We may have been so late with our question that the answer is there already.
        while "facts" in (told := read_frame(channel, where, PROBE_S).header):
            answer = told
        received = time.time()
        rounds.append((float(told["clock"]) - (sent + received) / 2, (received - sent) / 2))
        # After the first round neither the node nor we have much else to do once the answer is there.
        answer = answer or read_frame(channel, where, PROBE_S).header
    return answer, min(rounds, key=lambda pair: pair[1])


def estimate_clock(theirs: float, received: float, round_trip_s: float) -> tuple[float, float]:
    """Estimate how far a node's clock is ahead from one message of it, which took half a round trip or longer."""
    return theirs - received + round_trip_s / 2, round_trip_s
