"""Tries the ways between this node and every other one: TCP with a payload both ways, and UDP that must not be fragmented.

request: {"address": A, "interface": I, "nonce": N, "rank": R}. It listens on a TCP and a UDP port that the kernel picks and says
{"address": A, "tcp": P, "udp": P, "mtu": M}. The order {"op": "test", "peers": [{"rank", "address", "tcp", "udp"}], "limit_s": S} is answered with
{"results": [...]}, one for each peer. With "again": {"times": N, "limit_s": S, "rtt_ms": most, "rate_mbs": least} only times are taken, peer after
peer, up to N times each until they are good enough; the best count, and after S seconds nobody else is tried. Others are served until the orders end.

A request with "ports": {"tcp", "udp"} listens there where they can be had and are of those that the kernel picks from; with "early", an order to test, it is
answered at once. With "patience_s" in an order, who refuses is tried again for so long: it may not listen yet.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from typing import Any, Dict, List, Sequence, Set, Tuple

from orchestrator.node.mesh_serve import ECHOES, PAYLOAD, echo, read_line, read_payload, serve
from orchestrator.node.probe_network import read_addresses, read_port_range
from orchestrator.node.reach import STEPS, test_patiently
from orchestrator.node.wire import Wire

Answer = Dict[str, Any]
UdpWay = Tuple[socket.socket, Tuple[str, int], bytes]
"""A socket of ours, where it sends to, and what begins all that we send."""
PAYLOAD_S = 8.0
"""Of a way on which it takes longer the rate is known well enough; the launch host waits for all."""
LIFE_S = 180
"""A launch host whose link is cut is not seen to be gone: nothing stays here longer."""
SMALL = 200
TRIES = 5
ANSWER_S = 0.25
SIZES = 16
"""So many sizes are tried at the same time where full ones do not pass."""
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PROBE = 10, 23, 3
"""Linux's numbers: don't fragment, and ask the path anew whatever is remembered of it."""
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
LEAST = {socket.AF_INET: 576, socket.AF_INET6: 1280}


def main(request: Answer, wire: Wire, modules: Dict[str, str]) -> None:
    """Serve the other nodes, and test the ways to them when told so."""
    del modules
    signal.alarm(LIFE_S)
    family = socket.AF_INET6 if ":" in request["address"] else socket.AF_INET
    held = read_addresses()
    request = {**request, "address": _own_address(request, family, held)}
    listener, echoing = _open(socket.SOCK_STREAM, family, request), _open(socket.SOCK_DGRAM, family, request)
    listener.listen(128)
    mtu = next((entry["mtu"] for entry in held if entry["address"] == request["address"]), None)
    threading.Thread(target=serve, args=(listener, request), daemon=True).start()
    threading.Thread(target=echo, args=(echoing, request["nonce"].encode()), daemon=True).start()
    ports = {"tcp": listener.getsockname()[1], "udp": echoing.getsockname()[1]}
    wire.send({"address": request["address"], "mtu": mtu, **ports})
    if "early" in request:
        wire.send({"results": _test_all(request["early"], request, mtu)})
    while True:
        order = wire.read_order()
        if order is None:
            return
        if order.get("op") == "test":
            wire.send({"results": _test_all(order, request, mtu)})


def _own_address(request: Answer, family: int, held: List[Answer]) -> str:
    """Behind a translation nobody here holds the address that was proved: gloo would give out the interface's own."""
    address = str(request["address"])
    if address.startswith("127.") or any(entry["address"] == address for entry in held):
        return address
    own = [
        str(entry["address"])
        for entry in held
        if entry["interface"] == request["interface"]
        and (":" in entry["address"]) == (family == socket.AF_INET6)
        and not entry["address"].startswith("fe80:")
    ]
    return own[0] if own else address


def _open(kind: int, family: int, request: Answer) -> socket.socket:
    sock = socket.socket(family, kind)
    if kind == socket.SOCK_DGRAM:
        _forbid_fragments(sock, family)
    wanted = int((request.get("ports") or {}).get("udp" if kind == socket.SOCK_DGRAM else "tcp", 0))
    low, *_, high = read_port_range() or [0, 0]
    if wanted and low <= wanted <= high:
        with contextlib.suppress(OSError):  # somebody has it
            sock.bind((request["address"], wanted))
            return sock
    sock.bind((request["address"], 0))
    return sock


def _forbid_fragments(sock: socket.socket, family: int) -> None:
    level = socket.IPPROTO_IPV6 if family == socket.AF_INET6 else socket.IPPROTO_IP
    option = IPV6_MTU_DISCOVER if family == socket.AF_INET6 else IP_MTU_DISCOVER
    with contextlib.suppress(OSError):
        sock.setsockopt(level, option, PROBE)


def _test_all(order: Answer, request: Answer, mtu: "int | None") -> List[Answer]:
    """Test the ways to all peers at the same time, or again one after the other."""
    if order.get("again"):
        end = time.monotonic() + order["again"]["limit_s"]
        return [
            {"target": peer["rank"], **_test_again(peer, request, order, end)}
            for peer in order["peers"]
            if time.monotonic() < end
        ]
    results: List[Answer] = [{} for _ in order["peers"]]

    def put(place: int, peer: Answer) -> None:
        results[place] = {
            "target": peer["rank"],
            **test_patiently(lambda: _test_tcp(peer, request, order["limit_s"]), order),
        }
        large_are_lost = results[place].get("step") == "stalled"
        if mtu and (results[place]["ok"] or large_are_lost):
            results[place].update(_test_udp(peer, request, mtu))

    threads = [threading.Thread(target=put, args=item, daemon=True) for item in enumerate(order["peers"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _test_again(peer: Answer, request: Answer, order: Answer, end: float) -> Answer:
    """Test a way until its times are good enough, while nothing else of ours disturbs it."""
    wanted, best = order["again"], _test_tcp(peer, request, order["limit_s"])
    for _ in range(wanted["times"] - 1):
        good = best["ok"] and best["rtt_ms"] <= wanted["rtt_ms"] and best["rate_mbs"] >= wanted["rate_mbs"]
        if good or time.monotonic() > end:
            break
        found = _test_tcp(peer, request, order["limit_s"])
        if found["ok"] and best["ok"]:
            found.update(rtt_ms=min(best["rtt_ms"], found["rtt_ms"]), rate_mbs=max(best["rate_mbs"], found["rate_mbs"]))
        best = found if found["ok"] else best
    return best


def _test_tcp(peer: Answer, request: Answer, limit_s: float) -> Answer:
    family = socket.AF_INET6 if ":" in peer["address"] else socket.AF_INET
    found: Answer = {"ok": False, "step": "timeout", "detail": f"no answer within {limit_s:g} s"}
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(limit_s)
            sock.bind((request["address"], 0))
            sock.connect((peer["address"], peer["tcp"]))
            _talk(sock, request["nonce"], found)
    except socket.timeout:
        pass  # how far it came is known
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        what = error.strerror if isinstance(error, OSError) else ""
        found.update(step=STEPS.get(number or 0, "failed"), detail=what or str(error))
    return found


def _talk(sock: socket.socket, nonce: str, found: Answer) -> None:
    """Be greeted, take the time, and send a payload there and back; what is found so far holds at any moment."""
    sock.sendall(nonce.encode() + b"\n")
    greeting = json.loads(read_line(sock) or b"{}")
    if greeting.pop("nonce", "") != nonce:
        found.update(step="wrong answer", detail="somebody else answers there")
        return
    found.update(greeting)
    cut = {"step": "cut", "detail": "the other side closed it half-way"}
    times_s = []
    for _ in range(ECHOES):
        began = time.monotonic()
        sock.sendall(b"\0")
        if not sock.recv(1):
            found.update(cut)
            return
        times_s.append(time.monotonic() - began)
    found["rtt_ms"] = round(min(times_s) * 1e3, 3)
    found.update(step="stalled", detail=f"it connects, but {PAYLOAD >> 10} KiB do not pass")
    began = time.monotonic()
    sock.sendall(b"\0" * PAYLOAD)
    size = read_payload(sock, began + PAYLOAD_S)
    took_s = max(time.monotonic() - began, 1e-6)
    if size < PAYLOAD and took_s < PAYLOAD_S:
        found.update(cut)
        return
    found.update(ok=True, step="", detail="", rate_mbs=round((PAYLOAD + size) / took_s / 1e6, 2))


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
        largest = _find_largest(way, LEAST[family] - HEADERS[family], full)
    return {"udp": "ok", "full_bytes": full + HEADERS[family], "passes_bytes": largest + HEADERS[family]}


def _find_largest(way: UdpWay, low: int, high: int) -> int:
    """Narrow down between a size that passes and one that does not, with many sizes at the same time."""
    while high - low > 1:
        step = max(1, (high - low) // (SIZES + 1))
        sizes = list(range(low + step, high, step))
        low = max(_passing(way, sizes), default=low)
        high = min(size for size in (*sizes, high) if size > low)
    return low


def _passes(way: UdpWay, size: int) -> bool:
    return any(size in _passing(way, [size]) for _ in range(TRIES))


def _passing(way: UdpWay, sizes: Sequence[int]) -> Set[int]:
    """Send a datagram of each size, twice where there are several; tell which are answered in time."""
    sock, target, nonce = way
    passed: Set[int] = set()
    for _ in range(2 if len(sizes) > 1 else 1):
        for size in sizes:
            with contextlib.suppress(OSError):  # too long for this interface
                sock.sendto(nonce + b"\0" * (size - len(nonce)), target)
    end = time.monotonic() + ANSWER_S
    while len(passed) < len(sizes) and time.monotonic() < end:
        try:
            sock.settimeout(max(0.01, end - time.monotonic()))
            answer = sock.recv(1 << 16)
        except socket.timeout:
            break
        except OSError:
            continue  # an ICMP answer to what was sent before
        if answer.startswith(nonce + b" ") and int(answer[len(nonce) :]) in sizes:
            passed.add(int(answer[len(nonce) :]))
    return passed
