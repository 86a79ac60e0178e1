"""Both sides of an SSH connection may greet at once: half a round trip of each login."""

from __future__ import annotations

import socket
import threading

import paramiko
import pytest

from orchestrator.transport.ssh import GREETING
from orchestrator.transport.ssh_dial import Deadline, DroppedError, Introduced, await_greeting
from orchestrator.transport.sshconfig import SshHost

LIMIT_S = 10.0


def test_the_greeting_goes_before_the_library_and_only_once() -> None:
    ours, theirs = socket.socketpair()
    with theirs, Introduced(ours, GREETING) as sock:
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
    sock = Introduced(ours, GREETING)
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
    with Introduced(ours, GREETING) as sock, pytest.raises(DroppedError, match="drops the login before it has begun"):
        await_greeting(sock, host, "node", Deadline.after(LIMIT_S))
