"""Whoever has connected to the supervisor's socket: hears every event, gives orders."""

from __future__ import annotations

import _socket  # what socket lays over it costs as much as a start of Python

from orchestrator.node.fastjson import dumps
from orchestrator.node.visitors import take
from orchestrator.node.wire import Lines

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Clients:
    """The open connections of a supervisor."""

    def __init__(self) -> None:
        self._clients: dict[int, _socket.socket] = {}
        self._lines: dict[int, Lines] = {}

    @property
    def handles(self) -> list[int]:
        """File descriptors to poll."""
        return list(self._clients)

    def accept(self, listener: _socket.socket, events: list[dict[str, Any]]) -> None:
        """Let a client in and tell it everything that has happened."""
        try:
            client = take(listener)
        except OSError:
            return  # it has left, or we have no file left for it: it may come again
        # A client that stops reading must not hold us up: it is dropped and may come again.
        client.settimeout(1.0)
        handle = client.fileno()
        self._clients[handle] = client
        self._lines[handle] = Lines()
        for event in events:
            self._write(handle, event)

    def send(self, event: dict[str, Any]) -> None:
        """Tell everyone."""
        for handle in self.handles:
            self._write(handle, event)

    def _write(self, handle: int, event: dict[str, Any]) -> None:
        client = self._clients.get(handle)
        if client is None:
            return
        try:
            client.sendall(dumps(event).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            # It has left, but its last order may wait to be read; the end of file behind it drops the client.
            return
        except OSError:
            self._drop(handle)

    def _drop(self, handle: int) -> None:
        self._lines.pop(handle)
        self._clients.pop(handle).close()

    def read(self, ready: set[int]) -> Iterator[dict[str, Any]]:
        """Give the orders of those that have something to say."""
        for handle in self.handles:
            if handle in ready and handle in self._clients:
                yield from self._read_one(handle)

    def _read_one(self, handle: int) -> list[Any]:
        try:
            data = self._clients[handle].recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(handle)
            return []
        try:
            orders: list[Any] = self._lines[handle].feed(data)
        except ValueError:
            orders = [None]
        if not all(isinstance(order, dict) for order in orders):
            self._drop(handle)  # whatever that is, it is no launch host of ours
            return []
        return orders
