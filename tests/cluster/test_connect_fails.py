"""How every way to fail to reach a node is told, against real sshds."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Mapping

import pytest
from ways import Way, echo, known_lines, make_key

from orchestrator.errors import (
    AortaError,
    HostKeyError,
    LinkError,
    LinkLostError,
    LoginError,
    NodeError,
    Several,
    SilentError,
)
from orchestrator.values import Node


def test_an_unknown_key_is_refused_with_its_fingerprint_then_accepted_and_remembered(way: Way) -> None:
    way.known_hosts.write_text("")
    error = way.fails(way.node(1))
    key = way.cluster.folder(1) / "ssh_host_ed25519_key.pub"
    shown = subprocess.run(["ssh-keygen", "-l", "-f", str(key)], check=True, capture_output=True, text=True).stdout
    assert isinstance(error, HostKeyError)
    assert shown.split()[1] in error.what
    assert "ssh-keyscan" in error.remedy
    assert "--accept-new-host-keys" in error.remedy
    assert error.where == "node1"
    way.connect(way.node(1), accept_new=True)
    assert len(known_lines(way)) == 1
    assert echo(way.connect(way.node(1))[0], "a") == "a"


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_key_is_always_refused_and_names_the_line(way: Way, accept_new: bool) -> None:  # noqa: FBT001 - parametrized
    first, second = known_lines(way)[:2]
    way.known_hosts.write_text(f"# mine\n{first.split()[0]} {' '.join(second.split()[1:])}\n")
    error = way.fails(way.node(1), accept_new=accept_new)
    assert isinstance(error, HostKeyError)
    assert f"{way.known_hosts}:2 holds another" in error.what
    assert f"ssh-keygen -f {way.known_hosts} -R" in error.remedy
    assert "verified" in error.remedy


def test_a_revoked_key_is_refused(way: Way) -> None:
    key = " ".join(known_lines(way)[0].split()[1:])
    way.known_hosts.write_text(way.known_hosts.read_text() + f"@revoked * {key}\n")
    error = way.fails(way.node(1), accept_new=True)
    assert isinstance(error, HostKeyError)
    assert "is revoked" in error.what


def test_a_host_certificate_is_said_to_be_beyond_us(way: Way) -> None:
    key = " ".join(known_lines(way)[1].split()[1:])
    way.known_hosts.write_text(f"@cert-authority * {key}\n")
    error = way.fails(way.node(1))
    assert isinstance(error, HostKeyError)
    assert "host certificate" in error.what


# ---- it fails


def test_all_failures_are_told_together_and_what_opened_is_closed(way: Way) -> None:
    nodes = [way.node(1), way.node(2, port=9), Node(name="typo", host="nosuchname.invalid"), way.node(3)]
    error = way.fails(*nodes)
    assert isinstance(error, Several)
    assert error.exit_code == 3
    assert [(one.where, type(one)) for one in error.errors] == [("node2", LinkError), ("typo", LinkError)]
    assert "port 9 refuses connections" in error.errors[0].what
    assert "does not resolve" in error.errors[1].what
    assert all(one.remedy for one in error.errors)


def test_a_server_that_is_no_ssh_server(way: Way) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"220 mail.example ESMTP\r\n"), daemon=True)
        thread.start()
        port = server.getsockname()[1]
        error = way.fails(Node(name="mail", host="127.0.0.1", port=port), timeout_s=1)
    assert "is no SSH server; it says '220 mail.example ESMTP'" in error.what


@pytest.mark.namespaces
def test_a_black_hole_and_a_frozen_sshd_are_told_within_the_time(breakable: Way) -> None:
    breakable.cluster.drop(1)
    breakable.cluster.freeze_sshd(2)
    began = time.monotonic()
    try:
        error = breakable.fails(breakable.node(1), breakable.node(2), timeout_s=2)
    finally:
        breakable.cluster.undrop(1)
        breakable.cluster.thaw_sshd(2)
    assert time.monotonic() - began < 4
    assert isinstance(error, Several)
    hole, frozen = error.errors
    assert isinstance(hole, SilentError)
    assert isinstance(frozen, SilentError)
    assert "packets vanish" in hole.what
    assert "takes the connection and says nothing for 2 s" in frozen.what


def test_a_key_that_the_node_does_not_know(way: Way) -> None:
    key = make_key(way.folder / "stranger")
    way.configure(key=key)
    error = way.fails(way.node(1))
    assert isinstance(error, LoginError)
    assert f"with every key shown ({key})" in error.what
    assert "it allows publickey" in error.what


def test_a_user_whom_the_node_does_not_know(way: Way) -> None:
    error = way.fails(way.node(1, user="nosuchuser"))
    assert isinstance(error, LoginError)
    assert "refuses user nosuchuser" in error.what


def test_a_named_key_that_is_not_there(way: Way) -> None:
    error = way.fails(way.node(1, key="/nowhere/id"))
    assert isinstance(error, LoginError)
    assert "/nowhere/id is not there" in error.what


def test_too_many_keys(breakable: Way) -> None:
    breakable.cluster.restart_sshd(1, "MaxAuthTries=2")
    keys = [make_key(breakable.folder / f"key{number}") for number in range(4)]
    breakable.configure("".join(f"IdentityFile {key}\n" for key in keys))
    error = breakable.fails(breakable.node(1))
    assert isinstance(error, LoginError)
    assert "too many authentication failures" in error.what
    assert "IdentitiesOnly" in error.remedy
    # The named key is shown first, so it gets in all the same.
    named = breakable.node(1, key=str(breakable.cluster.identity))
    assert echo(breakable.connect(named)[0], "a") == "a"


OPTIONS: Mapping[str, tuple[tuple[str, ...], type[AortaError], str]] = {
    "passwords only": (("PubkeyAuthentication=no", "PasswordAuthentication=yes"), LoginError, "only password"),
    "second factor": (
        ("AuthenticationMethods=publickey,password", "PasswordAuthentication=yes"),
        LoginError,
        "wants password as well",
    ),
    "key exchange": (("KexAlgorithms=sntrup761x25519-sha512@openssh.com",), LinkError, "no common algorithm"),
    "forced command": (("ForceCommand=echo go away; exit 3",), NodeError, "go away"),
    "ends the session": (("ForceCommand=kill -9 $PPID",), LinkLostError, "broke before our program started"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_an_sshd_may_want_instead(breakable: Way, name: str) -> None:
    options, kind, words = OPTIONS[name]
    breakable.cluster.restart_sshd(1, *options)
    with pytest.raises(kind, match=words) as told:
        echo(breakable.connect(breakable.node(1))[0])
    assert told.value.where == "node1"


def test_logins_that_sshd_drops_are_tried_again(breakable: Way) -> None:
    config = breakable.cluster.folder(1) / "sshd_config"
    usual = config.read_text()
    # Of this option alone sshd takes the last value, so the one in the file has to go.
    config.write_text(usual.replace("MaxStartups 100", "MaxStartups 1"))
    try:
        breakable.cluster.restart_sshd(1)
    finally:
        config.write_text(usual)
    hold = socket.create_connection((breakable.cluster.address(1), breakable.cluster.spec.ssh_port))
    error = breakable.fails(breakable.node(1))
    assert isinstance(error, SilentError)
    assert "drops the login before it has begun" in error.what
    assert "MaxStartups" in error.remedy
    # As soon as there is room a new try gets in.
    threading.Timer(0.2, hold.close).start()
    assert echo(breakable.connect(breakable.node(1))[0], "a") == "a"


def test_a_jump_host_that_is_not_reached_is_named(way: Way) -> None:
    error = way.fails(way.node(2, jump=f"{way.cluster.address(1)}:9"))
    assert error.where == "node2"
    assert f"the jump host {way.cluster.address(1)} is not reached" in error.what
    assert "refuses connections" in error.what


def test_a_node_that_the_jump_host_does_not_reach(way: Way) -> None:
    error = way.fails(way.node(2, port=9, jump=way.cluster.address(1)))
    assert "cannot reach" in error.what
    assert "port 9" in error.what


def test_a_proxy_command_that_ends(way: Way) -> None:
    way.configure("Host *\n  ProxyCommand echo no way >&2; false\n")
    error = way.fails(way.node(1))
    assert "ProxyCommand" in error.what
    assert "no way" in error.what


# ---- it breaks


def sshd_sessions(way: Way, k: int) -> list[str]:
    return way.cluster.exec(k, ["pgrep", "-f", "^sshd: [^[]*$"]).stdout.split()


@pytest.mark.namespaces
def test_a_session_that_is_killed_is_a_lost_link_at_once(breakable: Way) -> None:
    channel = breakable.connect(breakable.node(1))[0].open("echo", {})
    assert channel.read(10)
    pids = sshd_sessions(breakable, 1)
    assert pids
    began = time.monotonic()
    breakable.cluster.exec(1, ["kill", "-9", *pids])
    with pytest.raises(LinkLostError):
        channel.read(10)
    assert time.monotonic() - began < 3
    with pytest.raises(LinkLostError):
        channel.send({})


@pytest.mark.namespaces
@pytest.mark.long
@pytest.mark.parametrize("busy", [False, True])
def test_a_silent_link_is_noticed_within_20_s(breakable: Way, busy: bool) -> None:  # noqa: FBT001 - parametrized
    channel = breakable.connect(breakable.node(1))[0].open("echo", {})
    assert channel.read(10)
    breakable.cluster.drop(1)
    began = time.monotonic()
    try:
        if busy:
            channel.send({"big": "x" * 4_000_000})
        with pytest.raises(LinkLostError, match="silent for"):
            channel.read()
    except LinkLostError as error:
        assert "silent for" in error.what  # noqa: PT017 - with a full window it is the sender that is told
    finally:
        breakable.cluster.undrop(1)
    assert time.monotonic() - began < 20
