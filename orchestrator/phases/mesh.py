"""Tries the ways between all nodes, on ports of those that the kernel picks from, as gloo and NCCL will use them."""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from orchestrator.errors import AortaError
from orchestrator.facts.mesh import MeshFacts, Way
from orchestrator.phases.addresses import Place
from orchestrator.phases.foreseen import PATIENCE_S, UNSURE, foresee_address, is_far
from orchestrator.settings import Settings
from orchestrator.transport import Channel, Link
from orchestrator.transport.answers import read_frame
from orchestrator.transport.fanout import try_all
from orchestrator.values import Node

MOST_NODES = 16
LIMIT_S = 3.0
ANSWER_S = 30.0
LIKELY_PORTS = range(32768, 60999)
"""From which kernels pick if nobody told them otherwise."""
AGAIN = 3
"""So many times a way that seems slow is tried again, when no other is: a busy machine is no slow way."""
AGAIN_S = 2.0
DOUBT_TIMES, DOUBT_SHARE = 2.0, 0.5
"""What seems slow, beside the median."""
DOUBT_MS, DOUBT_MBS = 1.0, 50.0
"""No way is said to be slow below this time, or above this rate."""

Opened = Mapping[int, tuple[Channel, dict[str, Any]]]


class EarlyMesh:
    """The programs of a mesh that are asked for before any address was proved, each with what it is to test."""

    def __init__(self, seeming: Sequence[str]) -> None:
        self.nonce = secrets.token_hex(16)
        self.places = tuple(Place(address, "") for address in seeming)
        """Where each node will take part, if all is as it seems: at the address by which we reach it."""
        self.channels: dict[int, Channel] = {}
        self.trying: set[int] = set()
        """Who tests as soon as it listens."""
        self._peers: list[dict[str, Any]] = [
            {"rank": rank, "address": address, "tcp": _pick_port(), "udp": _pick_port()}
            for rank, address in enumerate(seeming)
        ]

    def ask(self, node_rank: int, link: Link) -> None:
        """Let one node listen where the others are told that it does and, if it is far, try them; wait for nothing."""
        own, others = self._peers[node_rank], [*self._peers[:node_rank], *self._peers[node_rank + 1 :]]
        request = {
            **_ask(self.places[node_rank], self.nonce, node_rank),
            "ports": {"tcp": own["tcp"], "udp": own["udp"]},
        }
        far = is_far(link)
        if far:
            request["early"] = {"peers": others, "limit_s": LIMIT_S, "patience_s": PATIENCE_S}
        with contextlib.suppress(AortaError):  # what is not here is asked for again, and told then
            self.channels[node_rank] = link.open("mesh", request)
            if far:
                self.trying.add(node_rank)

    def close(self) -> None:
        """End them."""
        for channel in list(self.channels.values()):
            channel.close()

    def is_held(self, node_rank: int, header: Mapping[str, Any]) -> bool:
        """Tell from what a node says whether it listens where the others were told."""
        return all(header.get(name) == self._peers[node_rank][name] for name in ("address", "tcp", "udp"))

    def is_of(self, places: Sequence[Place]) -> bool:
        """Tell whether the addresses that were proved are those that were tried."""
        return [place.address for place in places] == [place.address for place in self.places]


def foresee_mesh(nodes: Sequence[Node]) -> EarlyMesh | None:
    """Choose where the nodes will listen, where it can be told already at which addresses; None where not."""
    if not 1 < len(nodes) <= MOST_NODES:
        return None
    seeming = [foresee_address(node) for node in nodes]
    return EarlyMesh(seeming) if all(seeming) else None


def _pick_port() -> int:
    return secrets.choice(LIKELY_PORTS)


def _ask(place: Place, nonce: str, node_rank: int) -> dict[str, Any]:
    return {"address": place.address, "interface": place.interface, "nonce": nonce, "rank": node_rank}


def measure_mesh(
    links: Sequence[Link],
    nodes: Sequence[Node],
    places: Sequence[Place],
    settings: Settings,
    early: EarlyMesh | None = None,
) -> MeshFacts:
    """Let every node try every other one; a node that does not answer is a way that fails."""
    if len(nodes) == 1:
        return MeshFacts(skipped="one node")
    if len(nodes) > MOST_NODES:
        return MeshFacts(skipped=f"more than {MOST_NODES} nodes: --level 1 tries pairs")
    nonce = early.nonce if early is not None else secrets.token_hex(16)
    with ExitStack() as undo:

        def open_node(node_rank: int) -> tuple[Channel, dict[str, Any]]:
            channel = early.channels.get(node_rank) if early is not None else None
            channel = channel or links[node_rank].open("mesh", _ask(places[node_rank], nonce, node_rank))
            undo.callback(channel.close)
            return channel, dict(read_frame(channel, nodes[node_rank].name, ANSWER_S).header)

        opened, errors = try_all(open_node, range(len(nodes)), settings.fanout)
        known, mute = _read_early(opened, nodes, settings, early)
        # What such a node says now could be the answer to anything.
        opened = {rank: one for rank, one in opened.items() if rank not in mute}
        broken = [_lost(rank, error) for rank, error in sorted({**errors, **mute}.items())]
        pairs = [(source, target) for source in sorted(opened) for target in sorted(opened) if source != target]
        found, lost = _try_pairs(opened, nodes, settings, [pair for pair in pairs if pair not in known])
        both = known | found
        found = {pair: both[pair] for pair in pairs if pair in both}
        if not lost:
            found, lost = _try_again(opened, nodes, settings, found)
    return MeshFacts(ways=(*broken, *lost, *found.values()))


def _read_early(
    opened: Opened, nodes: Sequence[Node], settings: Settings, early: EarlyMesh | None
) -> tuple[dict[tuple[int, int], Way], dict[int, AortaError]]:
    """Wait for what nodes have found out by themselves; give what of it is sure, and who has said nothing."""
    if early is None:
        return {}, {}
    asked = sorted(early.trying & opened.keys())
    held = {rank for rank, (_, header) in opened.items() if early.is_held(rank, header)}

    def read(rank: int) -> list[Way]:
        results = read_frame(opened[rank][0], nodes[rank].name, ANSWER_S).header["results"]
        return [Way(source=rank, **result) for result in results]

    found, errors = try_all(read, asked, settings.fanout)
    ways = [way for place in sorted(found) for way in found[place] if way.target in held]
    known = {(way.source, way.target): way for way in ways if way.ok or way.step not in UNSURE}
    return known, {asked[place]: error for place, error in errors.items()}


def _lost(node_rank: int, error: AortaError) -> Way:
    # One node that went away is a finding of that node, not the end of the check.
    return Way(source=node_rank, target=node_rank, step="failed", detail=error.what)


def _try_pairs(
    opened: Opened,
    nodes: Sequence[Node],
    settings: Settings,
    pairs: Sequence[tuple[int, int]],
    again: Mapping[str, float] | None = None,
) -> tuple[dict[tuple[int, int], Way], list[Way]]:
    """Let the first of each pair try the second, all nodes at the same time; give the nodes that were lost apart."""
    sources = sorted({source for source, _ in pairs})

    def test(source: int) -> list[Way]:
        peers = [
            {"rank": rank, **{name: opened[rank][1][name] for name in ("address", "tcp", "udp")}}
            for from_rank, rank in pairs
            if from_rank == source
        ]
        channel = opened[source][0]
        channel.send({"op": "test", "limit_s": LIMIT_S, "peers": peers, "again": again})
        results = read_frame(channel, nodes[source].name, ANSWER_S).header["results"]
        return [Way(source=source, **result) for result in results]

    found, errors = try_all(test, sources, settings.fanout)
    ways = {(way.source, way.target): way for _, ways in sorted(found.items()) for way in ways}
    return ways, [_lost(sources[at], error) for at, error in sorted(errors.items())]


def _try_again(
    opened: Opened, nodes: Sequence[Node], settings: Settings, found: Mapping[tuple[int, int], Way]
) -> tuple[dict[tuple[int, int], Way], list[Way]]:
    """Try the ways that seem slow again, node after node, and keep the best; not for long."""
    best, until = dict(found), time.monotonic() + AGAIN_S
    doubtful, wanted = _doubtful(best)
    for source in sorted({source for source, _ in doubtful}):
        left_s = until - time.monotonic()
        if left_s < 0:
            break
        # The node repeats it by itself: the way to us may be long.
        again, lost = _try_pairs(
            opened,
            nodes,
            settings,
            [pair for pair in doubtful if pair[0] == source],
            {**wanted, "times": AGAIN, "limit_s": left_s},
        )
        if lost:
            return best, lost
        best |= {pair: _better(best[pair], way) for pair, way in again.items()}
    return best, []


def _doubtful(found: Mapping[tuple[int, int], Way]) -> tuple[list[tuple[int, int]], dict[str, float]]:
    """List the ways that seem slower than the others, and what would be as good as those."""
    timed = {pair: (way.rtt_ms, way.rate_mbs) for pair, way in found.items() if way.ok and way.rtt_ms and way.rate_mbs}
    if not timed:
        return [], {}
    longest_ms = max(DOUBT_MS, DOUBT_TIMES * statistics.median(rtt_ms or 0.0 for rtt_ms, _ in timed.values()))
    least_mbs = max(DOUBT_MBS, DOUBT_SHARE * statistics.median(rate_mbs or 0.0 for _, rate_mbs in timed.values()))
    doubtful = [
        pair for pair, (rtt_ms, rate_mbs) in timed.items() if (rtt_ms or 0) > longest_ms or (rate_mbs or 0) < least_mbs
    ]
    return doubtful, {"rtt_ms": longest_ms, "rate_mbs": least_mbs}


def _better(first: Way, second: Way) -> Way:
    if not second.ok or second.rtt_ms is None or first.rtt_ms is None:
        return first
    rate_mbs = max(first.rate_mbs or 0.0, second.rate_mbs or 0.0)
    return first.model_copy(update={"rtt_ms": min(first.rtt_ms, second.rtt_ms), "rate_mbs": rate_mbs})
