"""Tries the ways between this node and every other one: TCP with a payload both ways, and UDP that must not be fragmented.

request: {"address": A, "interface": I, "nonce": N, "rank": R}. It listens on a TCP and a UDP port that the kernel picks and says
{"tcp": P, "udp": P, "mtu": M}. The order {"op": "test", "peers": [{"rank", "address", "tcp", "udp"}], "limit_s": S} is answered with
{"results": [...]}, one for each peer; others are served until the orders end.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from typing import Any, Dict, List, Tuple

from orchestrator.node.probe_network import read_addresses, source_towards
from orchestrator.node.reach import STEPS
from orchestrator.node.wire import Wire

Answer = Dict[str, Any]
PAYLOAD = 256 * 1024
"""More than a congestion window: a path that loses full-sized packets stalls."""
PAYLOAD_S = 8.0
"""Of a way on which it takes longer the rate is known well enough; the launch host waits for all."""
PIECE = 1 << 16
LONGEST_LINE = 1024
SMALL = 200
TRIES = 5
ANSWER_S = 0.25
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PROBE = 10, 23, 3
"""Linux's numbers: don't fragment, and ask the path anew whatever is remembered of it."""
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
LEAST = {socket.AF_INET: 576, socket.AF_INET6: 1280}


def main(request: Answer, wire: Wire, modules: Dict[str, str]) -> None:
    """Serve the other nodes, and test the ways to them when told so."""
    del modules
    family = socket.AF_INET6 if ":" in request["address"] else socket.AF_INET
    listener, echo = _open(socket.SOCK_STREAM, family, request), _open(socket.SOCK_DGRAM, family, request)
    listener.listen(128)
    mtu = next((entry["mtu"] for entry in read_addresses() if entry["address"] == request["address"]), None)
    threading.Thread(target=_serve, args=(listener, request), daemon=True).start()
    threading.Thread(target=_echo, args=(echo, request["nonce"].encode()), daemon=True).start()
    wire.send({"tcp": listener.getsockname()[1], "udp": echo.getsockname()[1], "mtu": mtu})
    while True:
        order = wire.read_order()
        if order is None:
            return
        if order.get("op") == "test":
            wire.send({"results": _test_all(order, request, mtu)})


def _open(kind: int, family: int, request: Answer) -> socket.socket:
    sock = socket.socket(family, kind)
    if kind == socket.SOCK_DGRAM:
        _forbid_fragments(sock, family)
    sock.bind((request["address"], 0))
    return sock


def _forbid_fragments(sock: socket.socket, family: int) -> None:
    level = socket.IPPROTO_IPV6 if family == socket.AF_INET6 else socket.IPPROTO_IP
    option = IPV6_MTU_DISCOVER if family == socket.AF_INET6 else IP_MTU_DISCOVER
    with contextlib.suppress(OSError):
        sock.setsockopt(level, option, PROBE)


def _serve(listener: socket.socket, request: Answer) -> None:
    while True:
        visitor, peer = listener.accept()
        threading.Thread(target=_answer, args=(visitor, str(peer[0]), request), daemon=True).start()


def _answer(visitor: socket.socket, peer: str, request: Answer) -> None:
    """Greet with what this side sees of the visitor, take its payload, and give the same back."""
    with visitor, contextlib.suppress(OSError):
        visitor.settimeout(10)
        if _read_line(visitor) != request["nonce"].encode():
            return
        back = source_towards(peer)
        holder = next((entry["interface"] for entry in read_addresses() if entry["address"] == back), "")
        greeting = {"nonce": request["nonce"], "seen": peer, "back": back, "back_interface": holder}
        visitor.sendall(json.dumps(greeting).encode() + b"\n")
        _read_payload(visitor)
        visitor.sendall(b"\0" * PAYLOAD)


def _echo(sock: socket.socket, nonce: bytes) -> None:
    """Answer every datagram of ours with its size."""
    while True:
        try:
            data, peer = sock.recvfrom(1 << 16)
            if data.startswith(nonce):
                sock.sendto(nonce + b" %d" % len(data), peer)
        except OSError:
            continue  # an ICMP answer to what was sent before


def _read_line(sock: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < LONGEST_LINE:
        data = sock.recv(1)
        if not data:
            break
        line += data
    return line.strip()


def _read_payload(sock: socket.socket, end: float = math.inf) -> int:
    size = 0
    while size < PAYLOAD and time.monotonic() < end:
        data = sock.recv(PIECE)
        if not data:
            break
        size += len(data)
    return size


def _test_all(order: Answer, request: Answer, mtu: "int | None") -> List[Answer]:
    """Test the ways to all peers at the same time."""
    results: List[Answer] = [{} for _ in order["peers"]]

    def put(place: int, peer: Answer) -> None:
        results[place] = {"target": peer["rank"], **_test_tcp(peer, request, order["limit_s"])}
        if results[place]["ok"] and mtu:
            results[place].update(_test_udp(peer, request, mtu))

    threads = [threading.Thread(target=put, args=item, daemon=True) for item in enumerate(order["peers"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _test_tcp(peer: Answer, request: Answer, limit_s: float) -> Answer:
    family = socket.AF_INET6 if ":" in peer["address"] else socket.AF_INET
    step = "connect"
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(limit_s)
            sock.bind((request["address"], 0))
            sock.connect((peer["address"], peer["tcp"]))
            began = time.monotonic()
            sock.sendall(request["nonce"].encode() + b"\n")
            greeting = json.loads(_read_line(sock) or b"{}")
            rtt_s = time.monotonic() - began
            if greeting.pop("nonce", "") != request["nonce"]:
                return {"ok": False, "step": "wrong answer", "detail": "somebody else answers there"}
            step = "payload"
            began = time.monotonic()
            sock.sendall(b"\0" * PAYLOAD)
            size = _read_payload(sock, began + PAYLOAD_S)
            took_s = max(time.monotonic() - began, 1e-6)
    except socket.timeout:
        if step == "payload":
            return {"ok": False, "step": "stalled", "detail": f"it connects, but {PAYLOAD >> 10} KiB do not pass"}
        return {"ok": False, "step": "timeout", "detail": f"no answer within {limit_s:g} s"}
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else 0
        return {"ok": False, "step": STEPS.get(number or 0, "failed"), "detail": str(error)}
    if size < PAYLOAD and took_s < PAYLOAD_S:
        return {"ok": False, "step": "cut", "detail": "the other side closed it half-way"}
    rate_mbs = round((PAYLOAD + size) / took_s / 1e6, 2)
    return {"ok": True, "rtt_ms": round(rtt_s * 1e3, 3), "rate_mbs": rate_mbs, **greeting}


def _test_udp(peer: Answer, request: Answer, mtu: int) -> Answer:
    """Find out whether datagrams of the interface's full size pass without being fragmented; else which do."""
    family = socket.AF_INET6 if ":" in peer["address"] else socket.AF_INET
    full = min(mtu, 65535) - HEADERS[family]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        _forbid_fragments(sock, family)
        sock.bind((request["address"], 0))
        way = (sock, (peer["address"], peer["udp"]), request["nonce"].encode())
        if not _passes(way, SMALL):
            return {"udp": "silent"}
        if _passes(way, full):
            return {"udp": "ok", "full_bytes": full + HEADERS[family], "passes_bytes": full + HEADERS[family]}
        low, high = LEAST[family] - HEADERS[family], full
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _passes(way, middle, 2) else (low, middle)
    return {"udp": "ok", "full_bytes": full + HEADERS[family], "passes_bytes": low + HEADERS[family]}


def _passes(way: Tuple[socket.socket, Tuple[str, int], bytes], size: int, tries: int = TRIES) -> bool:
    sock, target, nonce = way
    wanted = nonce + b" %d" % size
    for _ in range(tries):
        end = time.monotonic() + ANSWER_S
        try:
            sock.sendto(nonce + b"\0" * (size - len(nonce)), target)
            while time.monotonic() < end:
                sock.settimeout(max(0.01, end - time.monotonic()))
                if sock.recv(1 << 16) == wanted:
                    return True
        except OSError:
            continue  # too long for this interface, or nothing came
    return False
