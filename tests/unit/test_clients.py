"""What the supervisor hears from those who connect to its socket."""

from __future__ import annotations

import socket
from pathlib import Path

from orchestrator.node.clients import Clients


def test_the_last_order_of_a_client_that_left_before_it_was_let_in_counts(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b'{"op": "stop"}\n')
        clients = Clients()
        clients.accept(listener, [{"ev": "ready"}])
        clients.send({"ev": "agent"})
        assert list(clients.read(set(clients.handles))) == [{"op": "stop"}]
        assert list(clients.read(set(clients.handles))) == []
        assert clients.handles == []
