from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.errors import LinkLostError
from orchestrator.facts.mesh import Way
from orchestrator.node import mesh, mesh_serve
from orchestrator.phases.addresses import Place
from orchestrator.phases.mesh import _better, _doubtful, measure_mesh
from orchestrator.settings import Settings
from orchestrator.transport import Channel
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node


def test_a_way_that_only_trickles_is_measured_and_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "PAYLOAD_S", 0.3)
    request = {"address": "127.0.0.1", "nonce": "n0"}
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            visitor, _ = listener.accept()
            with visitor:
                visitor.recv(64)
                visitor.sendall(json.dumps({"nonce": "n0", "seen": "127.0.0.1"}).encode() + b"\n")
                for _ in range(mesh_serve.ECHOES):
                    visitor.sendall(visitor.recv(1))
                mesh_serve.read_payload(visitor)
                while not over.wait(0.01):
                    visitor.sendall(b"\0")

        server = threading.Thread(target=trickle, daemon=True)
        server.start()
        began = time.monotonic()
        peer = {"address": "127.0.0.1", "tcp": listener.getsockname()[1]}
        found = mesh._test_tcp(peer, request, 3.0)
        took_s = time.monotonic() - began
        over.set()
        server.join(10)
    assert found["ok"], found
    assert 0 < found["rate_mbs"] < 2
    assert took_s < 3


class LostLink(LocalLink):
    """A link that is gone as soon as something is asked over it."""

    def open(self, program: str, request: Mapping[str, Any]) -> Channel:
        del request
        raise LinkLostError(what=f"no {program} any more", where=self.node.name, remedy="look")


def test_a_node_that_is_lost_in_between_is_a_finding_of_that_node() -> None:
    nodes = [Node(name=name, host="127.0.0.1", local=True) for name in "abc"]
    links = [LocalLink(nodes[0]), LostLink(nodes[1]), LocalLink(nodes[2])]
    found = measure_mesh(links, nodes, [Place("127.0.0.1", "lo")] * 3, Settings(check=True))
    assert {(way.source, way.target): way.ok for way in found.ways} == {(1, 1): False, (0, 2): True, (2, 0): True}
    assert found.ways[0].detail == "no mesh any more"


@pytest.mark.parametrize("most", [548, 549, 1270, 1471, 8971])
def test_the_largest_datagram_that_passes_is_found_exactly(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    rounds = []

    def passing(way: mesh.UdpWay, sizes: list[int]) -> set[int]:
        del way
        rounds.append(sizes)
        return {size for size in sizes if size <= most}

    monkeypatch.setattr(mesh, "_passing", passing)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert mesh._find_largest((sock, ("", 0), b""), 548, 8972) == most
    assert len(rounds) <= 5


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_nodes_try_each_other_with_both_families(address: str) -> None:
    nodes = [Node(name=name, host=address, local=True) for name in "abc"]
    links = [LocalLink(node) for node in nodes]
    found = measure_mesh(links, nodes, [Place(address, "lo")] * 3, Settings(check=True))
    assert len(found.ways) == 6
    for way in found.ways:
        assert way.ok, way
        assert (way.seen, way.back, way.back_interface) == (address, address, "lo")
        assert way.udp == "ok"
        assert way.passes_bytes == way.full_bytes


def test_an_address_that_nobody_here_holds_gives_way_to_that_of_the_interface() -> None:
    held = [
        {"interface": "eth0", "address": "10.0.0.5"},
        {"interface": "eth0", "address": "fe80::1"},
        {"interface": "eth0", "address": "fd00::5"},
        {"interface": "eth1", "address": "10.1.0.5"},
    ]

    def own(address: str) -> str:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return mesh._own_address({"address": address, "interface": "eth0"}, family, held)

    assert own("203.0.113.9") == "10.0.0.5"
    assert own("2001:db8::9") == "fd00::5"
    assert own("10.1.0.5") == "10.1.0.5"
    assert own("127.64.0.3") == "127.64.0.3"


def test_a_way_that_seems_slow_is_tried_again_and_the_best_counts() -> None:
    def way(source: int, target: int, rtt_ms: float, rate_mbs: float) -> Way:
        return Way(source=source, target=target, ok=True, rtt_ms=rtt_ms, rate_mbs=rate_mbs)

    found = {(0, 1): way(0, 1, 0.1, 500), (1, 0): way(1, 0, 30.0, 450), (0, 2): way(0, 2, 0.2, 90)}
    assert _doubtful(found) == ([(1, 0), (0, 2)], {"rtt_ms": 1.0, "rate_mbs": 225.0})
    assert _doubtful({}) == ([], {})
    better = _better(found[1, 0], way(1, 0, 0.3, 200))
    assert (better.rtt_ms, better.rate_mbs) == (0.3, 450)
    assert _better(found[1, 0], Way(source=1, target=0, step="timeout")) == found[1, 0]


def test_a_node_repeats_by_itself_what_is_not_good_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*tests: tuple[float, float] | None) -> dict[str, Any]:
        left = iter(
            [{"ok": False} if one is None else {"ok": True, "rtt_ms": one[0], "rate_mbs": one[1]} for one in tests]
        )
        monkeypatch.setattr(mesh, "_test_tcp", lambda *_: dict(next(left)))
        wanted = {"times": 3, "limit_s": 9.0, "rtt_ms": 1.0, "rate_mbs": 50.0}
        (result,) = mesh._test_all({"peers": [{"rank": 4}], "limit_s": 3.0, "again": wanted}, {}, 1500)
        return {**result, "left": len(list(left))}

    good = {"target": 4, "ok": True, "left": 0}
    assert told((0.4, 60), (0.1, 99)) == {**good, "rtt_ms": 0.4, "rate_mbs": 60, "left": 1}
    assert told((30, 60), (2, 40), (0.5, 20)) == {**good, "rtt_ms": 0.5, "rate_mbs": 60}
    assert told((30, 60), (0.5, 40), (9, 9)) == {**good, "rtt_ms": 0.5, "rate_mbs": 60, "left": 1}
    late = {"times": 3, "limit_s": 0.0, "rtt_ms": 1.0, "rate_mbs": 50.0}
    assert mesh._test_all({"peers": [{"rank": 4}], "limit_s": 3.0, "again": late}, {}, 1500) == []
    assert told((30, 60), None, None) == {**good, "rtt_ms": 30, "rate_mbs": 60}


def test_the_program_ends_when_the_launch_host_is_gone_without_a_word() -> None:
    code = (
        "from orchestrator.node import mesh; from orchestrator.node.wire import Wire; mesh.LIFE_S = 1; "
        "mesh.main({'address': '127.0.0.1', 'interface': 'lo', 'nonce': 'n0'}, Wire('x'), {})"
    )
    silent, ours = os.pipe()
    try:
        done = subprocess.run([sys.executable, "-c", code], stdin=silent, stdout=subprocess.DEVNULL, timeout=30)
    finally:
        os.close(silent)
        os.close(ours)
    assert done.returncode == -signal.SIGALRM
