from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.node import processes, ras, sockets

TEXT = (
    "State Recv-Q Send-Q Local Address:Port Peer Address:Port Process\n"
    'ESTAB 0 2097152 10.0.0.1:40000 10.0.0.2:40001 users:(("python3",pid=71,fd=9))\n'
    "\t cubic rto:204 rtt:0.1/0.05 unacked:12 lastsnd:30000\n"
    'ESTAB 0 0 10.0.0.1:22 10.0.0.9:50000 users:(("sshd",pid=712,fd=4))\n'
    "\t cubic rto:204\n"
)


@contextmanager
def service(answer: bytes, heard: list[bytes]) -> Iterator[str]:
    """A service that greets each of the first two lines, and answers the third."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            wire, _ = server.accept()
            with wire, wire.makefile("rb") as lines:
                for number, line in enumerate(lines):
                    heard.append(line)
                    wire.sendall(answer if number else b"SERVER PROTOCOL 2\n")
                    if number >= 2:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


def put_rank(folder: Path) -> None:
    own = processes.read_process(os.getpid())
    assert own is not None
    rank = {"ev": "rank", "rank": 0, "local_rank": 0, "pid": own.pid, "ticks": own.ticks}
    (folder / "status.json").write_text(json.dumps({"events": [rank]}))


def test_each_connection_of_a_rank_is_one_line() -> None:
    (line,) = sockets.pick_lines(TEXT, [71])
    assert "10.0.0.2:40001" in line
    assert line.endswith("unacked:12 lastsnd:30000")


@pytest.mark.skipif(shutil.which("ss") is None, reason="there is no ss here")
def test_the_connections_of_real_ranks_are_found(tmp_path: Path) -> None:
    put_rank(tmp_path)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as mine,
        server.accept()[0],
    ):
        told = sockets.list_sockets(str(tmp_path), {})
        assert told["why"] == ""
        assert f"127.0.0.1:{mine.getsockname()[1]}" in told["text"]


@pytest.mark.skipif(shutil.which("ss") is None, reason="there is no ss here")
def test_what_a_rank_sends_through_a_connection_counts_as_moved() -> None:
    code = (
        "import socket, sys; wire = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "sys.stdin.readline(); wire.sendall(bytes(1 << 20)); sys.stdin.readline()"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [sys.executable, "-c", code, str(server.getsockname()[1])]
        with subprocess.Popen(words, stdin=subprocess.PIPE, text=True) as sender:
            assert sender.stdin is not None
            wire, _ = server.accept()
            with wire:
                before = sockets.read_traffic()
                sender.stdin.write("\n")
                sender.stdin.flush()
                read = 0
                while read < 1 << 20:
                    read += len(wire.recv(1 << 16))
                after = sockets.read_traffic()
                sender.stdin.close()
    moved = sockets.count_moved(before, after, [sender.pid])
    assert moved is not None
    assert 1 << 20 <= moved < 2 << 20
    assert sockets.count_moved(before, after, [1]) == 0
    assert sockets.count_moved(after, after, [sender.pid]) == 0
    assert sockets.count_moved(None, after, [sender.pid]) is None


def test_nccl_is_asked_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bytes] = []
    with service(b"Job summary\n", heard) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        found = ras.ask(str(tmp_path), {})
    assert heard == [b"client protocol 2\n", b"timeout 5\n", b"verbose status\n"]
    assert found == {"text": "Job summary\n", "why": ""}


def test_a_service_that_says_nothing_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with service(b"", []) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        monkeypatch.setattr(ras, "ANSWER_S", 0.3)
        found = ras.ask(str(tmp_path), {})
    assert found["text"] == ""
    assert found["why"]


def test_where_nobody_listens_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("127.0.0.1:1", "nonsense"):
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        found = ras.ask(str(tmp_path), {})
        assert found["text"] == ""
        assert "NCCL's RAS at" in found["why"]
