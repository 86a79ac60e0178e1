from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.errors import LinkLostError
from orchestrator.node import mesh
from orchestrator.phases.addresses import Place
from orchestrator.phases.mesh import measure_mesh
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
                for _ in range(mesh.ECHOES):
                    visitor.sendall(visitor.recv(1))
                mesh._read_payload(visitor)
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
    found = measure_mesh(links, nodes, [Place("127.0.0.1", "lo")] * 3, Settings.model_validate({"check": True}))
    assert {(way.source, way.target): way.ok for way in found.ways} == {(1, 1): False, (0, 2): True, (2, 0): True}
    assert found.ways[0].detail == "no mesh any more"
