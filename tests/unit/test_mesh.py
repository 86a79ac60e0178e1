from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from orchestrator.node import mesh


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
