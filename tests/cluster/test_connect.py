"""How nodes are reached, and how every way to fail is told, against real sshds."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster import Cluster, start_cluster

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
from orchestrator.phases.connect import connect
from orchestrator.transport import Link
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node


@dataclass
class Way:
    """A cluster, and an ssh_config of the test's own through which it is reached."""

    cluster: Cluster
    folder: Path
    known_hosts: Path
    links: list[Link] = field(default_factory=list)

    def configure(self, first: str = "", *, key: Path | None = None) -> None:
        """Write the ssh_config; what the test gives comes first, so it wins."""
        lines = f"""{first}
Host *
  User {self.cluster.spec.user}
  Port {self.cluster.spec.ssh_port}
  IdentityFile {key or self.cluster.identity}
  IdentitiesOnly yes
  IdentityAgent none
  HashKnownHosts no
  UserKnownHostsFile {self.known_hosts}
  GlobalKnownHostsFile /dev/null
"""
        (self.folder / "config").write_text(lines)

    def node(self, k: int, **values: Any) -> Node:
        return Node(name=f"node{k}", host=self.cluster.address(k), local=False, **values)

    def connect(self, *nodes: Node, timeout_s: float = 5, accept_new: bool = False) -> list[Link]:
        settings = SimpleNamespace(
            user=None,
            ssh_port=None,
            identity=None,
            connect_timeout_s=timeout_s,
            fanout=64,
            accept_new_host_keys=accept_new,
            origins={},
        )
        links = connect(nodes, settings)
        self.links += links
        return links

    def fails(self, *nodes: Node, timeout_s: float = 5, accept_new: bool = False) -> AortaError:
        """Connect, expect that it does not work, and give the one error."""
        with pytest.raises(AortaError) as told:
            self.connect(*nodes, timeout_s=timeout_s, accept_new=accept_new)
        return told.value


def echo(link: Link, text: str = "\N{SNOWMAN} $(id)") -> str:
    return str(link.call("echo", {"text": text}, 10)["request"]["text"])


def make_way(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Way:
    way = Way(cluster, folder, folder / "known_hosts")
    shutil.copy(cluster.known_hosts, way.known_hosts)
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    way.configure()
    return way


@pytest.fixture
def way(nodes3: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    way = make_way(nodes3, tmp_path, monkeypatch)
    yield way
    for link in way.links:
        link.close()


@pytest.fixture(scope="module")
def broken_cluster() -> Iterator[Cluster]:
    with start_cluster(2) as cluster:
        yield cluster


@pytest.fixture
def breakable(broken_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Nodes whose sshd a test may spoil; node 1's is as before afterwards."""
    way = make_way(broken_cluster, tmp_path, monkeypatch)
    yield way
    for link in way.links:
        link.close()
    broken_cluster.restart_sshd(1)


def make_key(path: Path, *words: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-f", str(path), *(words or ("-N", ""))], check=True)
    return path


def known_lines(way: Way) -> list[str]:
    return way.known_hosts.read_text().splitlines()


# ---- it works


def test_every_node_is_reached_and_echoes_bytes_as_they_are(way: Way) -> None:
    links = way.connect(way.node(1), way.node(2), way.node(3))
    assert [link.node.name for link in links] == ["node1", "node2", "node3"]
    text = "x" * 3_000_000 + "\N{SNOWMAN}"
    assert all(echo(link, text) == text for link in links)


def test_orders_go_out_while_another_thread_reads(way: Way) -> None:
    channel = way.connect(way.node(1))[0].open("echo", {})
    assert channel.read(10)
    big = "y" * 100_000

    def send() -> None:
        for number in range(60):
            channel.send({"number": number, "big": big})

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    frames = [channel.read(10) for _ in range(120)]
    for thread in threads:
        thread.join(10)
    assert sorted(frame.header["order"]["number"] for frame in frames if frame) == sorted([*range(60)] * 2)
    with pytest.raises(TimeoutError):
        channel.read(0.05)
    channel.close()


def test_include_of_ssh_config_counts(way: Way) -> None:
    more = way.folder / "more"
    more.write_text(f"Host farm\n  HostName {way.cluster.address(2)}\n")
    way.configure(f"Include {more}")
    assert echo(way.connect(Node(name="farm", host="farm", local=False))[0], "a") == "a"


def test_a_shell_that_prints_before_our_program_does_no_harm(way: Way) -> None:
    bashrc = way.cluster.home(1) / ".bashrc"
    bashrc.write_text("for i in $(seq 2000); do echo AORTA noise; echo more >&2; done\n")
    try:
        assert echo(way.connect(way.node(1))[0], "a") == "a"
    finally:
        bashrc.unlink()


def test_stderr_without_end_stops_nothing(way: Way) -> None:
    bashrc = way.cluster.home(1) / ".bashrc"
    bashrc.write_text("head -c 8000000 /dev/zero >&2\n")
    try:
        assert echo(way.connect(way.node(1))[0], "a") == "a"
    finally:
        bashrc.unlink()


def test_through_a_jump_host_and_a_jump_host_behind_it(way: Way) -> None:
    gate = way.cluster.address(1)
    links = way.connect(
        way.node(2, jump=gate), way.node(3, jump=f"{gate},{way.cluster.address(2)}"), way.node(1, jump=gate)
    )
    assert [echo(link, "a") for link in links] == ["a", "a", "a"]


def test_proxy_command_of_ssh_config(way: Way) -> None:
    inner = shlex.join(way.cluster.ssh_words(1))
    way.configure(f"Host {way.cluster.address(2)}\n  ProxyCommand {inner} -W %h:%p\n")
    assert echo(way.connect(way.node(2))[0], "a") == "a"


def test_the_certificate_beside_the_key_opens_the_node(breakable: Way) -> None:
    authority, key = make_key(breakable.folder / "ca"), make_key(breakable.folder / "id")
    words = ["-s", str(authority), "-I", "ada", "-n", breakable.cluster.spec.user, "-V", "+1d", f"{key}.pub"]
    subprocess.run(["ssh-keygen", "-q", *words], check=True)
    trusted = breakable.cluster.folder(1) / "ca.pub"
    shutil.copy(f"{authority}.pub", trusted)
    breakable.cluster.restart_sshd(1, f"TrustedUserCAKeys={trusted}")
    breakable.configure(key=key)
    assert echo(breakable.connect(breakable.node(1))[0], "a") == "a"


def test_an_encrypted_key_works_once_the_agent_holds_it(way: Way) -> None:
    key = way.folder / "locked"
    shutil.copy(way.cluster.identity, key)
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True, capture_output=True)
    way.configure(key=key)
    error = way.fails(way.node(1))
    assert isinstance(error, LoginError)
    assert "is encrypted and no agent holds it" in error.what
    assert error.remedy == f"load it into an agent first: ssh-add {key}"
    sock = way.folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        wait_until(sock.exists)
        subprocess.run(["ssh-add", "-q", str(way.cluster.identity)], env={"SSH_AUTH_SOCK": str(sock)}, check=True)
        way.configure(f"IdentityAgent {sock}", key=key)
        assert echo(way.connect(way.node(1))[0], "a") == "a"
    finally:
        agent.terminate()
        agent.wait()


def wait_until(condition: Callable[[], bool], within_s: float = 10) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def test_a_node_that_is_this_machine_needs_no_ssh_but_an_sshd_on_a_loopback_port_does(way: Way) -> None:
    way.configure("Host localhost 127.0.0.9\n  User " + own_user() + "\n  Port 22\n")
    links = way.connect(Node(name="localhost", host="localhost"), Node(name="here", host="nosuchname", local=True))
    assert all(isinstance(link, LocalLink) for link in links)
    with socket.socket() as taken:
        taken.bind(("127.0.0.9", 0))
        error = way.fails(Node(name="n", host="127.0.0.9", port=taken.getsockname()[1]))
    assert "refuses connections" in error.what


def own_user() -> str:
    return subprocess.run(["id", "-un"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("how", ["plain", "jump", "accepted"])
def test_rsync_copies_over_the_very_way_of_the_link(way: Way, how: str) -> None:
    if how == "accepted":
        way.known_hosts.write_text("")
    jump = way.cluster.address(1) if how == "jump" else None
    link = way.connect(way.node(2, jump=jump), accept_new=how == "accepted")[0]
    target = link.rsync_target()
    source = way.folder / "hello"
    source.write_text(how)
    copied = subprocess.run(
        ["rsync", "-a", "-e", shlex.join(target.shell), str(source), f"{target.prefix}hello"],
        capture_output=True,
        text=True,
    )
    assert copied.returncode == 0, copied.stderr
    assert way.cluster.exec(2, ["cat", "hello"]).stdout == how


# ---- host keys


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
