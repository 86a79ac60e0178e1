"""How a program on a node talks to the launch host: frames on stdout, orders as JSON lines on stdin.

A frame is one JSON line, the header, with its body's length under "n" where there is a body, and then the body's bytes.
The first line of all is the marker `AORTA <nonce>`: whatever a noisy shell printed before it is skipped.
"""

from __future__ import annotations

import os

from orchestrator.node.fastjson import dumps, loads

TYPE_CHECKING = False  # the module typing costs as much as all of this
if TYPE_CHECKING:
    from typing import Any


class Lines:
    """Cuts a stream of bytes into JSON documents, one a line; what is not whole yet waits for more."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take the next bytes and give the documents that are whole."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        return [loads(line) for line in lines if line]


class Wire:
    """The node's end of a channel."""

    def __init__(self, nonce: str, out: int = -1) -> None:
        """Take over stdout, or write to another handle that nothing else prints to."""
        self.out = out if out >= 0 else os.dup(1)
        self._lines = Lines()
        self._orders: list[dict[str, Any]] = []
        self.early = b""
        """What somebody else has read from stdin before us."""
        # A stray print of a library must not land between two frames.
        if out < 0:
            os.dup2(2, 1)
        write_all(self.out, b"AORTA " + nonce.encode() + b"\n")

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Write one frame; blocks until all of it is taken."""
        write_all(self.out, frame(header, body))

    def read_order(self) -> dict[str, Any] | None:
        """Wait for the next order; None when the launch host has closed its end."""
        while not self._orders:
            if not self._fill():
                return None
        return self._orders.pop(0)

    def ready_orders(self) -> list[dict[str, Any]] | None:
        """Take what has come after stdin polled readable; None when the launch host has closed its end."""
        return self.early_orders() if self._fill() else None

    def early_orders(self) -> list[dict[str, Any]]:
        """Take what was read already: stdin does not poll readable for it."""
        if self.early:
            self._fill()
        orders, self._orders = self._orders, []
        return orders

    def _fill(self) -> bool:
        data, self.early = self.early or os.read(0, 1 << 16), b""
        self._orders += self._lines.feed(data)
        return bool(data)


def frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Build the bytes of one frame."""
    if body:
        header = {**header, "n": len(body)}
    return dumps(header).encode() + b"\n" + body


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, however many writes it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
