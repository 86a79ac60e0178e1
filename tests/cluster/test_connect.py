"""How nodes are reached, against real sshds."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable

import pytest
from ways import Way, echo, make_key

from orchestrator.errors import (
    LoginError,
)
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node


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
