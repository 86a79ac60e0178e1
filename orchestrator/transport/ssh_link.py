"""The link to a node over SSH: its programs, and the way that rsync takes."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import LinkError, LinkLostError
from orchestrator.transport import Channel, RsyncTarget
from orchestrator.transport.answers import read_answer
from orchestrator.transport.porter import Programs
from orchestrator.transport.ssh import Connection
from orchestrator.transport.ssh_base import paramiko
from orchestrator.transport.ssh_channel import SshChannel
from orchestrator.transport.ssh_hostkey import user_files
from orchestrator.transport.ssh_rsync import Hop, build_ssh_words, build_target
from orchestrator.values import Node

TCP_INFO_RTT = 68
"""Where struct tcp_info of linux/tcp.h has tcpi_rtt, in microseconds."""


def round_trip_s(sock: object) -> float:
    """Give the kernel's figure for a round trip, which knows nothing of how busy we are; 0 where it has none."""
    if not isinstance(sock, socket.socket) or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return 0.0  # through a jump host or a ProxyCommand
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_RTT + 4)
    except OSError:
        return 0.0
    return int.from_bytes(info[TCP_INFO_RTT:], sys.byteorder) / 1e6 if len(info) == TCP_INFO_RTT + 4 else 0.0


class SshLink:
    """A node reached over SSH."""

    def __init__(self, node: Node, connection: Connection, timeout_s: float) -> None:
        self.node = node
        self.pythons: tuple[str, ...] = ()
        self.round_trip_s = 0.0
        self._connection = connection
        self._timeout_s = timeout_s
        self._programs = Programs(node.name, self._start)

    def prepare(self) -> None:
        """Let what our programs need on the node come up; whatever is wrong with it is told when one is opened."""
        self._programs.prepare()

    def open(self, program: str, request: Mapping[str, Any]) -> Channel:
        """Start a program of orchestrator.node and keep it."""
        return self._programs.open(program, request)

    def _start(self, program: str, request: Mapping[str, Any]) -> SshChannel:
        """Start a program over a channel of its own."""
        connection, began = self._connection, time.monotonic()
        try:
            raw = connection.transport.open_session(timeout=self._timeout_s)
            self.round_trip_s = round_trip_s(connection.transport.sock) or time.monotonic() - began
        except (paramiko.SSHException, EOFError, OSError) as error:
            if reason := connection.lost():
                raise LinkLostError(what=reason, where=self.node.name, remedy="was sshd restarted?") from error
            remedy = "raise MaxSessions in its sshd_config (10 is the default)"
            what = f"the node opens no further channel ({error})"
            raise LinkError(what=what, where=self.node.name, step="channel", remedy=remedy) from error
        channel = SshChannel(raw, self.node.name, connection.lost, connection.heard)
        channel.start(program, request, self.pythons)
        return channel

    def call(self, program: str, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Run a program of orchestrator.node to its single answer."""
        return read_answer(self.open(program, request), self.node.name, timeout_s)

    def rsync_target(self) -> RsyncTarget:
        """Say how rsync gets there, with the very options that the link resolved."""
        way: list[Hop] = []
        connection: Connection | None = self._connection
        while connection is not None:
            way.insert(0, Hop(connection.host, user_files(connection.host), connection.key))
            connection = connection.via
        return build_target(way[-1].host, build_ssh_words(way, self._timeout_s))

    def close(self) -> None:
        """End the link; what was started on the node with its own session lives on."""
        self._connection.close()
