"""The seam to the nodes: a link is one open way to one node, a channel one program of ours running there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from orchestrator.light_dataclass import dataclass
from orchestrator.values import Node


@dataclass(frozen=True)
class Frame:
    """One message of a program on a node."""

    header: Mapping[str, Any]
    body: bytes = b""


@dataclass(frozen=True)
class RsyncTarget:
    """How rsync reaches the node that a link reaches."""

    shell: tuple[str, ...]
    """Words for rsync's -e; empty for a node that is this machine."""
    prefix: str
    """What stands before a path: "user@host:" or "[::1]:" or nothing."""
    path_env: Mapping[str, str] | None = None


class Channel(Protocol):
    """A running program on a node: frames come, orders go."""

    def read(self, timeout_s: float | None = None) -> Frame | None:
        """Wait for the next frame; None when the program has ended.

        Raises:
            TimeoutError: nothing came in time.
            LinkLostError: the link is gone or silent.
            NodeError: no Python on the node, or the program did not start.
        """

    def send(self, order: Mapping[str, Any]) -> None:
        """Send one order as a JSON line.

        Raises:
            LinkLostError: the link is gone.
        """

    def close(self) -> None:
        """Close our end; the program sees end of file on its stdin."""


class Link(Protocol):
    """One open way to one node."""

    node: Node
    pythons: tuple[str, ...]
    """Interpreters to try for our own programs, before python3 of the PATH; set once the probe has answered."""
    round_trip_s: float
    """How long the node took for the shortest question so far; 0 while none was asked."""

    def call(self, program: str, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Run a program of orchestrator.node to its single answer.

        Raises:
            NodeError: the program answered with an error, or no usable Python was found.
            LinkLostError: the link is gone, or no answer came in time.
        """

    def prepare(self) -> None:
        """Let what our programs need on the node come up; whatever is wrong with it is told when one is opened."""

    def open(self, program: str, request: Mapping[str, Any]) -> Channel:
        """Start a program of orchestrator.node and keep it."""

    def rsync_target(self) -> RsyncTarget:
        """Say how rsync gets there, with the very options that the link resolved."""

    def close(self) -> None:
        """End the link; what was started on the node with its own session lives on."""
