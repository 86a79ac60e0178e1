"""Tries the ways between this node and every other one: TCP with a payload both ways, and UDP that must not be fragmented.

request: {"address": A, "interface": I, "nonce": N, "rank": R}. It listens on a TCP and a UDP port that the kernel picks and says
{"address": A, "tcp": P, "udp": P, "mtu": M}. The order {"op": "test", "peers": [{"rank", "address", "tcp", "udp"}], "limit_s": S} is answered with
{"results": [...]}, one for each peer. With "again": {"times": N, "limit_s": S, "rtt_ms": most, "rate_mbs": least} only times are taken, peer after
peer, up to N times each until they are good enough; the best count, and after S seconds nobody else is tried. Others are served until the orders end.

A request with "ports": {"tcp", "udp"} listens there where they can be had and are of those that the kernel picks from; with "early", an order to test, it is
answered at once. With "patience_s" in an order, who refuses is tried again for so long: it may not listen yet.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import _socket  # what socket lays over it costs as much as one, and so do json, threading and typing
import time

from orchestrator.node.atonce import do_at_once, start_thread
from orchestrator.node.fastjson import loads
from orchestrator.node.mesh_serve import ECHOES, PAYLOAD, echo, read_line, read_payload, serve
from orchestrator.node.probe_network import read_addresses, read_port_range
from orchestrator.node.reach import STEPS, test_patiently
from orchestrator.node.wire import Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

    Answer = Dict[str, Any]
    UdpWay = Tuple[_socket.socket, Tuple[str, int], bytes]
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
HEADERS = {_socket.AF_INET: 28, _socket.AF_INET6: 48}
LEAST = {_socket.AF_INET: 576, _socket.AF_INET6: 1280}


def main(request: Answer, wire: Wire, modules: Dict[str, str]) -> None:
    """Serve the other nodes, and test the ways to them when told so."""
    del modules
    _signal.alarm(LIFE_S)
    family = _socket.AF_INET6 if ":" in request["address"] else _socket.AF_INET
    held = read_addresses()
    request = {**request, "address": _own_address(request, family, held)}
    listener, echoing = _open(_socket.SOCK_STREAM, family, request), _open(_socket.SOCK_DGRAM, family, request)
    listener.listen(128)
    mtu = next((entry["mtu"] for entry in held if entry["address"] == request["address"]), None)
    start_thread(lambda: serve(listener, request))
    start_thread(lambda: echo(echoing, request["nonce"].encode()))
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
        and (":" in entry["address"]) == (family == _socket.AF_INET6)
        and not entry["address"].startswith("fe80:")
    ]
    return own[0] if own else address


def _open(kind: int, family: int, request: Answer) -> _socket.socket:
    sock = _socket.socket(family, kind)
    if kind == _socket.SOCK_DGRAM:
        _forbid_fragments(sock, family)
    wanted = int((request.get("ports") or {}).get("udp" if kind == _socket.SOCK_DGRAM else "tcp", 0))
    low, *_, high = read_port_range() or [0, 0]
    if wanted and low <= wanted <= high:
        try:
            sock.bind((request["address"], wanted))
        except OSError:
            pass  # somebody has it
        else:
            return sock
    sock.bind((request["address"], 0))
    return sock


def _forbid_fragments(sock: _socket.socket, family: int) -> None:
    level = _socket.IPPROTO_IPV6 if family == _socket.AF_INET6 else _socket.IPPROTO_IP
    option = IPV6_MTU_DISCOVER if family == _socket.AF_INET6 else IP_MTU_DISCOVER
    try:
        sock.setsockopt(level, option, PROBE)
    except OSError:
        pass  # a kernel without it


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

    def putter(place: int, peer: Answer) -> Callable[[], None]:
        def put() -> None:
            found = test_patiently(lambda: _test_tcp(peer, request, order["limit_s"]), order)
            results[place] = {"target": peer["rank"], **found}
            large_are_lost = found.get("step") == "stalled"
            if mtu and (found["ok"] or large_are_lost):
                results[place].update(_test_udp(peer, request, mtu))

        return put

    do_at_once([putter(place, peer) for place, peer in enumerate(order["peers"])])
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
    family = _socket.AF_INET6 if ":" in peer["address"] else _socket.AF_INET
    found: Answer = {"ok": False, "step": "timeout", "detail": f"no answer within {limit_s:g} s"}
    try:
        sock = _socket.socket(family, _socket.SOCK_STREAM, 0)
        try:
            sock.settimeout(limit_s)
            sock.bind((request["address"], 0))
            sock.connect((peer["address"], peer["tcp"]))
            _talk(sock, request["nonce"], found)
        finally:
            sock.close()
    except _socket.timeout:  # in Python 3.9 it is not TimeoutError
        pass  # how far it came is known
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        what = error.strerror if isinstance(error, OSError) else ""
        found.update(step=STEPS.get(number or 0, "failed"), detail=what or str(error))
    return found


def _talk(sock: _socket.socket, nonce: str, found: Answer) -> None:
    """Be greeted, take the time, and send a payload there and back; what is found so far holds at any moment."""
    sock.sendall(nonce.encode() + b"\n")
    greeting = loads(read_line(sock) or b"{}")
    if not isinstance(greeting, dict) or greeting.pop("nonce", "") != nonce:
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
    family = _socket.AF_INET6 if ":" in peer["address"] else _socket.AF_INET
    full = min(mtu, 65535) - HEADERS[family]
    sock = _socket.socket(family, _socket.SOCK_DGRAM, 0)
    try:
        _forbid_fragments(sock, family)
        sock.bind((request["address"], 0))
        way = (sock, (peer["address"], peer["udp"]), request["nonce"].encode())
        if not _passes(way, SMALL):
            return {"udp": "silent"}
        whole = _passes(way, full)
        largest = full if whole else _find_largest(way, LEAST[family] - HEADERS[family], full)
    finally:
        sock.close()
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
            try:
                sock.sendto(nonce + b"\0" * (size - len(nonce)), target)
            except OSError:
                pass  # too long for this interface
    end = time.monotonic() + ANSWER_S
    while len(passed) < len(sizes) and time.monotonic() < end:
        try:
            sock.settimeout(max(0.01, end - time.monotonic()))
            answer = sock.recv(1 << 16)
        except _socket.timeout:
            break
        except OSError:
            continue  # an ICMP answer to what was sent before
        if answer.startswith(nonce + b" ") and int(answer[len(nonce) :]) in sizes:
            passed.add(int(answer[len(nonce) :]))
    return passed
