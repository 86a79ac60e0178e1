"""Holds the rendezvous port on the head until the run's store takes it, and answers whoever connects with a nonce.

{"port": P or null, "nonce": N, "names": [...]} listens until the orders end; without a port, at that of "proposed", of which
the other nodes are told before we have answered, unless somebody has it or the kernel may give it away. The order
{"op": "release"} stops the listening and keeps the port: torch's store binds with SO_REUSEADDR, which Linux grants beside a
socket that has the same option and does not listen (tried with libuv and without, both families), while everybody else is
refused.
"""

from __future__ import annotations

import _socket  # what socket lays over it costs as much as a start of Python, and so does typing
import errno
import os
import select

from orchestrator.node import portowner
from orchestrator.node.probe_network import read_port_range
from orchestrator.node.visitors import take
from orchestrator.node.wire import Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    Answer = Dict[str, Any]

LOW, HIGH = 20000, 30000


def main(request: Dict[str, Any], wire: Wire, modules: Dict[str, str]) -> None:
    """Take the port, tell which, and answer whoever connects until told to stop."""
    del modules
    wanted = request.get("port")
    try:
        listener = _listen(int(wanted)) if wanted else _listen_somewhere(int(request.get("proposed") or 0))
    except OSError as error:
        owner = portowner.find_owner(int(wanted)) if wanted else ""
        wire.send({"port": wanted, "trouble": error.strerror or str(error), "errno": error.errno, "owner": owner})
        return
    # Numeric names come back as they are; others are looked up where they will be used.
    resolved = {name: _resolve(name) for name in request.get("names", [])}
    wire.send({"port": listener.getsockname()[1], "both": listener.family == _socket.AF_INET6, "resolved": resolved})
    greeting = f"AORTA {request['nonce']}\n".encode()
    listening = True
    orders: Optional[List[Dict[str, Any]]] = wire.early_orders()
    while orders is not None:
        if listening and any(order.get("op") == "release" for order in orders):
            # Unlike closing and binding again, this leaves no moment in which the port is free.
            listener.shutdown(_socket.SHUT_RDWR)
            listening = False
            wire.send({"released": True})
        ready = select.select([0, listener.fileno()] if listening else [0], [], [])[0]
        if listening and listener.fileno() in ready:
            _greet(listener, greeting)
        orders = wire.ready_orders() if 0 in ready else []


def _listen(port: int) -> _socket.socket:
    try:
        return _bind(_socket.AF_INET6, "::", port)
    except OSError as error:
        # A kernel without IPv6, or one that is told not to use it.
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT):
            raise
    return _bind(_socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - the other nodes come from anywhere


def _bind(family: int, host: str, port: int) -> _socket.socket:
    listener = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        if family == _socket.AF_INET6:
            listener.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def _listen_somewhere(proposed: int) -> _socket.socket:
    """Take a port that no outgoing connection is ever given, where there is one; the proposed one if it can be had."""
    local = read_port_range() or [32768, 60999]
    free = [port for port in range(LOW, HIGH) if not local[0] <= port <= local[-1]]
    free = free or [port for port in range(10000, 65536) if not local[0] <= port <= local[-1]] or list(range(LOW, HIGH))
    last: Optional[OSError] = None
    for turn in range(50):
        port = free[int.from_bytes(os.urandom(4), "big") % len(free)]
        if not turn and proposed in free:
            port = proposed
        try:
            return _listen(port)
        except OSError as error:
            last = error
    raise last or OSError(errno.EADDRINUSE, "no free port")


def _greet(listener: _socket.socket, greeting: bytes) -> None:
    try:
        visitor = take(listener)
    except OSError:
        return
    try:
        visitor.settimeout(1)
        visitor.sendall(greeting)
    except OSError:
        pass  # it has gone
    finally:
        visitor.close()


def _resolve(name: str) -> List[str]:
    try:
        answers = _socket.getaddrinfo(name, None, type=_socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
