"""Proves addresses: the head holds a port and answers with a nonce, the nodes connect to it and read it.

{"act": "hold", "port": P or null, "nonce": N} listens until the orders end. The order {"op": "release"} stops the
listening and keeps the port: torch's store binds with SO_REUSEADDR, which Linux grants beside a socket that has the
same option and does not listen (tried with libuv and without, both families), while everybody else is refused.
{"act": "test", "candidates": [...], "port": P, "nonce": N, "limit_s": S, "source": A, "interface": I} tries them.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from typing import Any, Dict, List, Optional

from orchestrator.node import portowner
from orchestrator.node.probe_command import read_text
from orchestrator.node.probe_network import read_addresses
from orchestrator.node.wire import Wire

Answer = Dict[str, Any]
LOW, HIGH = 20000, 30000
LONGEST_LINE = 256
STEPS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.ENETUNREACH: "no route",
    errno.EHOSTUNREACH: "no route",
    errno.EADDRNOTAVAIL: "no such address",
    errno.EACCES: "forbidden",
    errno.EPERM: "forbidden",
}


def main(request: Dict[str, Any], wire: Wire, modules: Dict[str, str]) -> None:
    """Hold the port, or test the way to it."""
    del modules
    if request["act"] == "hold":
        hold_port(request, wire)
    else:
        wire.send({"results": test_candidates(request)})


def hold_port(request: Answer, wire: Wire) -> None:
    """Take the port, tell which, and answer whoever connects until told to stop."""
    wanted = request.get("port")
    try:
        listener = _listen(int(wanted)) if wanted else _listen_somewhere()
    except OSError as error:
        owner = portowner.find_owner(int(wanted)) if wanted else ""
        wire.send({"port": wanted, "trouble": error.strerror or str(error), "errno": error.errno, "owner": owner})
        return
    # Numeric names come back as they are; others are looked up where they will be used.
    resolved = {name: _resolve(name) for name in request.get("names", [])}
    wire.send({"port": listener.getsockname()[1], "both": listener.family == socket.AF_INET6, "resolved": resolved})
    greeting = f"AORTA {request['nonce']}\n".encode()
    listening = True
    while True:
        wanted_fds = [0, listener.fileno()] if listening else [0]
        ready = select.select(wanted_fds, [], [])[0]
        if listener.fileno() in ready:
            _greet(listener, greeting)
        if 0 not in ready:
            continue
        orders = wire.ready_orders()
        if orders is None:
            return
        if listening and any(order.get("op") == "release" for order in orders):
            # Unlike closing and binding again, this leaves no moment in which the port is free.
            listener.shutdown(socket.SHUT_RDWR)
            listening = False
            wire.send({"released": True})


def _listen(port: int) -> socket.socket:
    try:
        return _bind(socket.AF_INET6, "::", port)
    except OSError as error:
        # A kernel without IPv6, or one that is told not to use it.
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT):
            raise
    return _bind(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - the other nodes come from anywhere


def _bind(family: int, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def _listen_somewhere() -> socket.socket:
    """Take a port that no outgoing connection is ever given, where there is one."""
    local = [int(word) for word in read_text("/proc/sys/net/ipv4/ip_local_port_range").split()] or [32768, 60999]
    free = [port for port in range(LOW, HIGH) if not local[0] <= port <= local[-1]]
    free = free or [port for port in range(10000, 65536) if not local[0] <= port <= local[-1]] or list(range(LOW, HIGH))
    last: Optional[OSError] = None
    for _ in range(50):
        port = free[int.from_bytes(os.urandom(4), "big") % len(free)]
        try:
            return _listen(port)
        except OSError as error:
            last = error
    raise last or OSError(errno.EADDRINUSE, "no free port")


def _greet(listener: socket.socket, greeting: bytes) -> None:
    try:
        visitor, _ = listener.accept()
    except OSError:
        return
    with visitor:
        visitor.settimeout(1)
        try:
            visitor.sendall(greeting)
        except OSError:
            return


def _resolve(name: str) -> List[str]:
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def test_candidates(request: Answer) -> List[Answer]:
    """Try every candidate at the same time; each has the whole limit."""
    results: List[Answer] = [{} for _ in request["candidates"]]

    def put(place: int, address: str) -> None:
        results[place] = test_address(address, request)

    threads = [threading.Thread(target=put, args=item, daemon=True) for item in enumerate(request["candidates"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_address(address: str, request: Answer) -> Answer:
    """Connect, read the nonce, and tell which of our addresses the connection has; else at which step it ended."""
    result: Answer = {"address": address, "ok": False}
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    source = request.get("source") or ""
    if request.get("interface") and not source:
        source = _address_on(request["interface"], family)
        if not source:
            kind = "IPv6" if family == socket.AF_INET6 else "IPv4"
            return {**result, "step": "no such address", "detail": f"{request['interface']} has no {kind} address"}
    if source and (":" in source) != (family == socket.AF_INET6):
        return {**result, "step": "no such address", "detail": f"{source} is of the other family"}
    began = time.monotonic()
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(float(request["limit_s"]))
            if source:
                sock.bind((source, 0))
            sock.connect((address, int(request["port"])))
            local = str(sock.getsockname()[0])
            said = _read_line(sock)
    except socket.timeout:
        return {**result, "step": "timeout", "detail": f"no answer within {request['limit_s']:g} s"}
    except OSError as error:
        return {**result, "step": STEPS.get(error.errno or 0, "failed"), "detail": error.strerror or str(error)}
    if said != b"AORTA " + str(request["nonce"]).encode():
        shown = said[:60].decode("utf-8", "replace")
        return {**result, "step": "wrong answer", "detail": f"somebody else answers there: {shown!r}"}
    took_ms = round((time.monotonic() - began) * 1000, 2)
    return {**result, "ok": True, "local": local, "interface": _holder_of(local), "took_ms": took_ms}


def _read_line(sock: socket.socket) -> bytes:
    data = b""
    while b"\n" not in data and len(data) < LONGEST_LINE:
        more = sock.recv(LONGEST_LINE)
        if not more:
            break
        data += more
    return data.split(b"\n")[0]


def _address_on(interface: str, family: int) -> str:
    for entry in read_addresses():
        address = entry["address"]
        same = (":" in address) == (family == socket.AF_INET6)
        if entry["interface"] == interface and same and not address.startswith("fe80:"):
            return str(address)
    return ""


def _holder_of(address: str) -> str:
    entries = read_addresses()
    exact = [entry["interface"] for entry in entries if entry["address"] == address]
    # All of 127/8 is the loopback's, although it lists one address.
    loopback = [entry["interface"] for entry in entries if entry["address"].startswith("127.")]
    return str((exact or (loopback if address.startswith("127.") else []) or [""])[0])
