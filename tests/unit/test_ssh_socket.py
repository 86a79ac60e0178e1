"""The socket below an SSH connection: both sides may greet at once, and few calls to the kernel do for many packets."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import paramiko
import pytest

from orchestrator.transport.ssh import GREETING
from orchestrator.transport.ssh_dial import Deadline, DroppedError, await_greeting
from orchestrator.transport.ssh_socket import AHEAD, SshSocket
from orchestrator.transport.sshconfig import SshHost

LIMIT_S = 10.0


def test_the_greeting_goes_before_the_library_and_only_once() -> None:
    ours, theirs = socket.socketpair()
    with theirs, SshSocket(ours, GREETING) as sock:
        line = f"{GREETING}\r\n".encode()
        theirs.settimeout(LIMIT_S)
        assert theirs.recv(100) == line
        assert sock.send(line) == len(line)
        assert sock.send(b"key exchange") == len(b"key exchange")
        assert theirs.recv(100) == b"key exchange"
        sock.send(line)
        assert theirs.recv(100) == line, "the first time alone is the library's greeting"


def test_a_server_that_waits_for_our_greeting_gets_it_and_the_keys_are_agreed_on() -> None:
    """Both have to mean the same words: they are part of what is signed."""
    ours, theirs = socket.socketpair()
    sock = SshSocket(ours, GREETING)
    server = paramiko.Transport(theirs)
    server.add_server_key(paramiko.ECDSAKey.generate())
    agreed = threading.Event()
    server.start_server(event=agreed, server=paramiko.ServerInterface())
    client = paramiko.Transport(sock)
    client.local_version = GREETING
    try:
        client.start_client(timeout=LIMIT_S)
        assert agreed.wait(LIMIT_S)
        assert client.is_active()
        assert server.remote_version == GREETING
    finally:
        client.close()
        server.close()


def test_whoever_has_hung_up_is_told_apart_later() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    host = SshHost(alias="node", hostname="10.0.0.1", user="me", port=22)
    with SshSocket(ours, GREETING) as sock, pytest.raises(DroppedError, match="drops the login before it has begun"):
        await_greeting(sock, host, "node", Deadline.after(LIMIT_S))


@pytest.fixture
def pair() -> Iterator[tuple[SshSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    # As dial leaves it: with a limit, Python has the kernel wait for nothing.
    ours.settimeout(LIMIT_S)
    with theirs, SshSocket(ours, GREETING) as sock:
        theirs.recv(100)
        yield sock, theirs


def test_what_came_together_is_read_at_once_and_given_in_the_parts_that_are_asked_for(
    pair: tuple[SshSocket, socket.socket],
) -> None:
    sock, theirs = pair
    theirs.sendall(b"headpacketrest")
    assert sock.recv(4) == b"head"
    with pytest.raises(BlockingIOError):
        sock.recv(100, socket.MSG_DONTWAIT | socket.MSG_PEEK)  # the kernel has nothing any more
    assert (sock.recv(6), sock.recv(100)) == (b"packet", b"rest")
    theirs.sendall(b"more")
    theirs.close()
    assert (sock.recv(2), sock.recv(100), sock.recv(100)) == (b"mo", b"re", b"")


def test_much_at_once_is_the_same_bytes(pair: tuple[SshSocket, socket.socket]) -> None:
    sock, theirs = pair
    data = os.urandom(5 * AHEAD)
    sender = threading.Thread(target=theirs.sendall, args=(data,))
    sender.start()
    got, size = b"", 1
    while len(got) < len(data):
        got += sock.recv(size)
        size = size * 3 % (2 * AHEAD) + 1
    sender.join(LIMIT_S)
    assert got == data


def _fill(sock: socket.socket) -> None:
    while True:
        sock.send(bytes(AHEAD))  # nobody reads


@pytest.mark.parametrize("limit_s", [0.05, 0.000_000_1, 1.02])
def test_the_limit_on_time_is_that_of_each_call(pair: tuple[SshSocket, socket.socket], limit_s: float) -> None:
    sock, theirs = pair
    sock.settimeout(limit_s)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        sock.recv(16)
    assert limit_s <= time.monotonic() - began + 0.01 < LIMIT_S
    with pytest.raises(TimeoutError):
        _fill(sock)
    sock.settimeout(None)
    threading.Timer(0.1, theirs.sendall, [b"late"]).start()
    assert sock.recv(16) == b"late"


def test_a_read_that_waits_ends_when_the_connection_is_shut(pair: tuple[SshSocket, socket.socket]) -> None:
    sock, _ = pair
    sock.settimeout(None)
    threading.Timer(0.1, sock.shutdown, [socket.SHUT_RDWR]).start()
    assert sock.recv(16) == b""
