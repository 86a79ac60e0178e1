"""Tries the way from this node to the port that the head holds, and reads its nonce: addresses are proved, not guessed.

{"candidates": [...], "port": P, "nonce": N, "limit_s": S, "sources": {"v4": A, "v6": A}} tries every candidate, each
from the address of its family, where one is given. With "patience_s" an address that refuses is tried again for so long:
the head may not listen yet.
"""

from __future__ import annotations

import _socket  # what socket lays over it costs as much as a start of Python
import errno
import time

from orchestrator.node.atonce import do_at_once
from orchestrator.node.wire import Wire

TYPE_CHECKING = False  # the module typing costs as much again
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

    Answer = Dict[str, Any]

LONGEST_LINE = 256
PAUSE_S = 0.02
"""Before an address is tried again; each time twice as long."""
STEPS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.ENETUNREACH: "no route",
    errno.EHOSTUNREACH: "no route",
    errno.EADDRNOTAVAIL: "no such address",
    errno.EACCES: "forbidden",
    errno.EPERM: "forbidden",
}


def main(request: Answer, wire: Wire, modules: Dict[str, str]) -> None:
    """Test the way to the port."""
    del modules
    wire.send({"results": test_candidates(request)})


def test_candidates(request: Answer) -> List[Answer]:
    """Try every candidate at the same time; each has the whole limit."""
    candidates = request["candidates"]
    results: List[Answer] = [{} for _ in candidates]

    def putter(place: int) -> Callable[[], None]:
        def put() -> None:
            results[place] = test_patiently(lambda: test_address(candidates[place], request), request)

        return put

    do_at_once([putter(place) for place in range(len(candidates))])
    return results


def test_patiently(test: Callable[[], Answer], request: Answer) -> Answer:
    """Test until it is not refused any more, or for as long as we are to be patient."""
    until, pause_s = time.monotonic() + float(request.get("patience_s", 0.0)), PAUSE_S
    while (result := test()).get("step") == "refused" and time.monotonic() + pause_s < until:
        time.sleep(pause_s)
        pause_s *= 2
    return result


def test_address(address: str, request: Answer) -> Answer:
    """Connect, read the nonce, and tell which of our addresses the connection has; else at which step it ended."""
    result: Answer = {"address": address, "ok": False}
    kind, family = ("v6", _socket.AF_INET6) if ":" in address else ("v4", _socket.AF_INET)
    source = (request.get("sources") or {}).get(kind)
    began = time.monotonic()
    sock = _socket.socket(family, _socket.SOCK_STREAM, 0)
    try:
        sock.settimeout(float(request["limit_s"]))
        if source:
            sock.bind((source, 0))
        sock.connect((address, int(request["port"])))
        local = str(sock.getsockname()[0])
        said = _read_line(sock)
    except _socket.timeout:  # in Python 3.9 it is not TimeoutError
        return {**result, "step": "timeout", "detail": f"no answer within {request['limit_s']:g} s"}
    except OSError as error:
        return {**result, "step": STEPS.get(error.errno or 0, "failed"), "detail": error.strerror or str(error)}
    finally:
        sock.close()
    if said != b"AORTA " + str(request["nonce"]).encode():
        shown = said[:60].decode("utf-8", "replace")
        return {**result, "step": "wrong answer", "detail": f"somebody else answers there: {shown!r}"}
    took_ms = round((time.monotonic() - began) * 1000, 2)
    return {**result, "ok": True, "local": local, "took_ms": took_ms}


def _read_line(sock: _socket.socket) -> bytes:
    data = b""
    while b"\n" not in data and len(data) < LONGEST_LINE:
        more = sock.recv(LONGEST_LINE)
        if not more:
            break
        data += more
    return data.split(b"\n")[0]
