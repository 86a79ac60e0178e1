"""What can be told of the ways before any fact is known: where the head will listen, so that the nodes go there at once."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from orchestrator.errors import AortaError
from orchestrator.nodeline import is_numeric
from orchestrator.transport import Channel, Link
from orchestrator.values import Node

LONG_WAY_S = 0.02
"""From here on a round trip takes longer than what it could tell about the clock is worth, or a busy node is slower."""
TEST_S = 3.0
PATIENCE_S = 2.0
"""For those to begin to listen who were asked at the same time."""
UNSURE = frozenset({"refused", "wrong answer", "failed", "cut", "no such address"})
"""What an early try may end with when the other side listens elsewhere, or was too late: it is made again."""
HEAD_PORTS = range(20000, 30000)
"""No kernel gives them to an outgoing connection unless it was told to; those of node/hold.py, which takes longer to load."""


def is_far(link: Link) -> bool:
    """Tell whether a round trip to a node takes longer than a busy node does.

    Whoever is near is asked later: times that are taken while it gathers its facts are not those of the ways.
    """
    return link.round_trip_s > LONG_WAY_S


def foresee_address(node: Node) -> str:
    """Tell at which address a node will take part, if it is the one by which we reach it; empty when that is not known."""
    seeming = node.addr or node.host
    return seeming if is_numeric(seeming) and not node.iface else ""


def foresee_port() -> int:
    """Choose the port that the head will hold, unless somebody there has it."""
    return secrets.choice(HEAD_PORTS)


class EarlyReach:
    """The nodes on their way to the head's port before it is said to be held."""

    def __init__(self, address: str, port: int, nonce: str) -> None:
        self.address, self.port, self.nonce = address, port, nonce
        self._channels: dict[int, Channel] = {}

    def ask(self, node_rank: int, link: Link) -> None:
        """Let one node try it, and wait for nothing."""
        node = link.node
        if not self.address or (node_rank and node.iface):
            return
        sources: dict[str, str] = {}
        if node_rank and node.addr:
            if not is_numeric(node.addr) or (":" in node.addr) != (":" in self.address):
                return
            sources["v6" if ":" in node.addr else "v4"] = node.addr
        request: dict[str, Any] = {
            "candidates": [self.address],
            "port": self.port,
            "nonce": self.nonce,
            "limit_s": TEST_S,
            "patience_s": PATIENCE_S,
            "sources": sources,
        }
        with contextlib.suppress(AortaError):  # what is not here is asked for again, and told then
            self._channels[node_rank] = link.open("reach", request)

    def take(self, node_rank: int, address: str, port: int) -> Channel | None:
        """Have the program of a node, if it tried the very address and port that count."""
        return self._channels.pop(node_rank, None) if (address, port) == (self.address, self.port) else None

    def close(self) -> None:
        """End what nobody took."""
        for node_rank in list(self._channels):
            if (channel := self._channels.pop(node_rank, None)) is not None:
                channel.close()
