"""Tries the ways between all nodes, on ports that the kernel picks: what gloo and NCCL will use beside the rendezvous."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from orchestrator.errors import AortaError
from orchestrator.facts.mesh import MeshFacts, Way
from orchestrator.phases.addresses import Place
from orchestrator.settings import Settings
from orchestrator.transport import Channel, Link
from orchestrator.transport.answers import read_frame
from orchestrator.transport.fanout import try_all
from orchestrator.values import Node

MOST_NODES = 16
LIMIT_S = 3.0
ANSWER_S = 30.0


def measure_mesh(
    links: Sequence[Link], nodes: Sequence[Node], places: Sequence[Place], settings: Settings
) -> MeshFacts:
    """Let every node try every other one; a node that does not answer is a way that fails."""
    if len(nodes) == 1:
        return MeshFacts(skipped="one node")
    if len(nodes) > MOST_NODES:
        return MeshFacts(skipped=f"more than {MOST_NODES} nodes: --level 1 tries pairs")
    nonce = secrets.token_hex(16)
    with ExitStack() as undo:

        def open_node(node_rank: int) -> tuple[Channel, dict[str, Any]]:
            place = places[node_rank]
            request = {"address": place.address, "interface": place.interface, "nonce": nonce, "rank": node_rank}
            channel = links[node_rank].open("mesh", request)
            undo.callback(channel.close)
            return channel, dict(read_frame(channel, nodes[node_rank].name, ANSWER_S).header)

        opened, errors = try_all(open_node, range(len(nodes)), settings.fanout)
        broken = tuple(
            Way(source=rank, target=rank, step="failed", detail=_what(error)) for rank, error in sorted(errors.items())
        )
        peers = [
            {"rank": rank, "address": places[rank].address, "tcp": ports["tcp"], "udp": ports["udp"]}
            for rank, (_, ports) in sorted(opened.items())
        ]

        def test(node_rank: int) -> list[Way]:
            channel = opened[node_rank][0]
            channel.send(
                {"op": "test", "limit_s": LIMIT_S, "peers": [one for one in peers if one["rank"] != node_rank]}
            )
            results = read_frame(channel, nodes[node_rank].name, ANSWER_S).header["results"]
            return [Way(source=node_rank, **result) for result in results]

        ranks = sorted(opened)
        found, lost = try_all(test, ranks, settings.fanout)
    # One node that went away is a finding of that node, not the end of the check.
    gone = tuple(
        Way(source=ranks[at], target=ranks[at], step="failed", detail=_what(error))
        for at, error in sorted(lost.items())
    )
    return MeshFacts(ways=(*broken, *gone, *(way for _, ways in sorted(found.items()) for way in ways)))


def _what(error: AortaError) -> str:
    return error.what
