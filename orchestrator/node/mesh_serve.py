"""What a node does for those who try the ways to it: greets them, echoes, takes a payload and gives it back."""

from __future__ import annotations

import _socket  # what socket lays over it costs as much as a start of Python, and so do json, threading and typing
import time

from orchestrator.node.atonce import start_thread
from orchestrator.node.fastjson import dumps
from orchestrator.node.probe_network import read_addresses, source_towards
from orchestrator.node.visitors import accept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    Answer = Dict[str, Any]

FOR_EVER = float("inf")
PAYLOAD = 256 * 1024
"""More than a congestion window: a path that loses full-sized packets stalls."""
ECHOES = 4
"""A busy machine is slow to answer now and then: the quickest answer counts."""
PIECE = 1 << 16
LONGEST_LINE = 1024


def serve(listener: _socket.socket, request: Answer) -> None:
    """Answer every visitor, each in a thread of its own."""
    while True:
        try:
            visitor, peer = accept(listener)
        except OSError:
            time.sleep(0.05)  # no files are left for the moment
            continue
        start_thread(answerer(visitor, peer, request))


def answerer(visitor: _socket.socket, peer: str, request: Answer) -> Callable[[], None]:
    """Greet with what this side sees of the visitor, take its payload, and give the same back; whatever it does."""

    def answer() -> None:
        try:
            visitor.settimeout(10)
            if read_line(visitor) != request["nonce"].encode():
                return
            back = source_towards(peer)
            holder = next((entry["interface"] for entry in read_addresses() if entry["address"] == back), "")
            greeting = {"nonce": request["nonce"], "seen": peer, "back": back, "back_interface": holder}
            visitor.sendall(dumps(greeting).encode() + b"\n")
            for _ in range(ECHOES):
                visitor.sendall(visitor.recv(1))
            read_payload(visitor)
            visitor.sendall(b"\0" * PAYLOAD)
        except OSError:
            pass  # it has gone, or takes too long
        finally:
            visitor.close()

    return answer


def echo(sock: _socket.socket, nonce: bytes) -> None:
    """Answer every datagram of ours with its size."""
    while True:
        try:
            data, peer = sock.recvfrom(1 << 16)
            if data.startswith(nonce):
                sock.sendto(nonce + b" %d" % len(data), peer)
        except OSError:
            continue  # an ICMP answer to what was sent before


def read_line(sock: _socket.socket) -> bytes:
    """Read to the end of a line, byte by byte: what follows is for others."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LONGEST_LINE:
        data = sock.recv(1)
        if not data:
            break
        line += data
    return line.strip()


def read_payload(sock: _socket.socket, end: float = FOR_EVER) -> int:
    """Read a whole payload, or what of it comes in time; give its bytes."""
    size = 0
    while size < PAYLOAD and time.monotonic() < end:
        data = sock.recv(PIECE)
        if not data:
            break
        size += len(data)
    return size
