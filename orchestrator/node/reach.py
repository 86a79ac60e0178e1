"""Tries the way from this node to the port that the head holds, and reads its nonce: addresses are proved, not guessed.

{"candidates": [...], "port": P, "nonce": N, "limit_s": S, "source": A, "interface": I} tries every candidate.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from typing import Any, Dict, List

from orchestrator.node.probe_network import read_addresses
from orchestrator.node.wire import Wire

Answer = Dict[str, Any]
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
    """Test the way to the port."""
    del modules
    wire.send({"results": test_candidates(request)})


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
