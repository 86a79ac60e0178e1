from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import LinkError, UsageError
from orchestrator.phases.connect import find_chain, find_host, time_for
from orchestrator.transport import ssh_rsync
from orchestrator.transport.ssh_rsync import Hop, build_ssh_words, build_target
from orchestrator.transport.sshconfig import SshHost, ask_ssh, parse_jump, parse_ssh_answer
from orchestrator.values import Node

HOME = Path("/home/ada")
ANSWER = """\
host gpu1
user ada
hostname 10.0.0.1
port 2222
addressfamily inet
hashknownhosts yes
identitiesonly yes
identityfile ~/.ssh/id_ed25519
identityfile /keys/%h-%r
certificatefile ~/.ssh/%n-cert.pub
identityagent ${XDG}/agent.sock
globalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2
userknownhostsfile /home/ada/.ssh/known_hosts /home/ada/.ssh/known_hosts2
hostkeyalias farm
connecttimeout 7
proxyjump ada@gate:2200,inner
"""


def parse(text: str = ANSWER, **environ: str) -> SshHost:
    return parse_ssh_answer(text, "gpu1", environ, HOME)


def settings(**values: Any) -> Any:
    usual: dict[str, Any] = {"user": None, "ssh_port": None, "identity": None, "connect_timeout_s": 10.0, "origins": {}}
    return SimpleNamespace(**{**usual, **values})


@pytest.fixture
def ssh_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh that reads this file instead of the user's."""
    config = tmp_path / "config"
    config.write_text("")
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return config


def test_every_answer_of_ssh_is_understood() -> None:
    host = parse(XDG="/run/user/1")
    assert (host.hostname, host.port, host.user, host.family) == ("10.0.0.1", 2222, "ada", "inet")
    assert host.identities == ("/home/ada/.ssh/id_ed25519", "/keys/10.0.0.1-ada")
    assert host.certificates == ("/home/ada/.ssh/gpu1-cert.pub",)
    assert host.identities_only
    assert host.hash_known_hosts
    assert host.agent == "/run/user/1/agent.sock"
    assert host.proxy_jump == ("ada@gate:2200", "inner")
    assert host.user_known_hosts == ("/home/ada/.ssh/known_hosts", "/home/ada/.ssh/known_hosts2")
    assert host.connect_timeout_s == 7
    assert host.known_as == "farm"


def test_none_and_nothing_mean_that_there_is_none() -> None:
    host = parse(
        "user ada\nhostname h\nproxycommand none\nproxyjump none\nconnecttimeout none\nidentityagent none\n",
        SSH_AUTH_SOCK="/a",
    )
    assert not host.proxied
    assert host.connect_timeout_s is None
    assert host.agent is None


@pytest.mark.parametrize(
    ("value", "agent"), [("", "/env"), ("identityagent SSH_AUTH_SOCK\n", "/env"), ("identityagent $MINE\n", "/mine")]
)
def test_the_agent_is_the_one_that_ssh_would_ask(value: str, agent: str) -> None:
    assert parse(f"hostname h\n{value}", SSH_AUTH_SOCK="/env", MINE="/mine").agent == agent


@pytest.mark.parametrize(("port", "name"), [(22, "node.lab"), (2222, "[node.lab]:2222")])
def test_known_hosts_is_asked_by_name_and_port(port: int, name: str) -> None:
    assert SshHost(alias="a", hostname="Node.Lab", port=port).known_as == name


@pytest.mark.parametrize(
    ("text", "hop"),
    [
        ("gate", ("gate", None, None)),
        ("ada@gate:2200", ("gate", "ada", 2200)),
        ("ada@[fd00::1]:2200", ("fd00::1", "ada", 2200)),
        ("fd00::1", ("fd00::1", None, None)),
        ("ssh://ada@gate:2200/", ("gate", "ada", 2200)),
        ("a@b@gate", ("gate", "a@b", None)),
    ],
)
def test_hops_are_taken_apart(text: str, hop: tuple[str, str | None, int | None]) -> None:
    assert parse_jump(text) == hop


@pytest.mark.parametrize("name", ["-oProxyCommand=touch /tmp/x", "", "a b"])
def test_what_is_no_host_name_never_reaches_ssh(name: str) -> None:
    with pytest.raises(UsageError):
        ask_ssh(name)


def test_include_and_match_count(ssh_config: Path) -> None:
    more = ssh_config.with_name("more")
    more.write_text("Host gpu1\n  HostName 10.0.0.9\n  Port 2022\nMatch user eve\n  IdentityFile /keys/eve\n")
    ssh_config.write_text(f"Include {more}\n")
    host = find_host(Node(name="gpu1", host="gpu1", user="eve"), settings())
    assert (host.hostname, host.port, host.user) == ("10.0.0.9", 2022, "eve")
    assert "/keys/eve" in host.identities


def test_the_node_list_wins_over_flags_and_flags_over_ssh_config(ssh_config: Path) -> None:
    ssh_config.write_text("Host *\n  User config\n  Port 1\n")
    flags = settings(user="flag", ssh_port=2, identity="/keys/flag")
    both = find_host(Node(name="n", host="n", user="list", port=3, key="/keys/list"), flags)
    assert (both.user, both.port, both.named_key) == ("list", 3, "/keys/list")
    flag = find_host(Node(name="n", host="n"), flags)
    assert (flag.user, flag.port, flag.named_key) == ("flag", 2, "/keys/flag")
    bare = find_host(Node(name="n", host="n"), settings())
    assert (bare.user, bare.port, bare.named_key) == ("config", 1, None)


def test_a_broken_ssh_config_is_told_in_openssh_words(ssh_config: Path) -> None:
    ssh_config.write_text("Prot 22\n")
    with pytest.raises(LinkError, match="Bad configuration option") as told:
        find_host(Node(name="n", host="n"), settings())
    assert told.value.where == "n"
    assert told.value.exit_code == 3


def test_without_openssh_the_node_list_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    host = ask_ssh("10.0.0.1", user="ada", port=2222)
    assert (host.hostname, host.user, host.port, host.asked) == ("10.0.0.1", "ada", 2222, False)


def test_jump_hosts_of_the_list_replace_those_of_ssh_config_and_bring_their_own(ssh_config: Path) -> None:
    ssh_config.write_text("Host n\n  ProxyJump other\nHost inner\n  ProxyJump outer\n")
    chain = find_chain(find_host(Node(name="n", host="n", jump="ada@inner:2200,last"), settings()))
    assert [(hop.alias, hop.port) for hop in chain] == [("outer", 22), ("inner", 2200), ("last", 22)]
    assert find_chain(find_host(Node(name="n", host="n", jump="none"), settings())) == ()


def test_jump_hosts_in_a_circle_end(ssh_config: Path) -> None:
    ssh_config.write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(LinkError, match="circle"):
        find_chain(ask_ssh("a"))


def test_connect_timeout_of_ssh_config_stands_unless_ours_was_set() -> None:
    host = SshHost(alias="a", hostname="a", connect_timeout_s=3)
    assert time_for(host, settings()) == 3
    assert time_for(host, settings(origins={"connect_timeout_s": "flag --connect-timeout"})) == 10


def options_of(words: list[str]) -> list[str]:
    return [words[place + 1] for place, word in enumerate(words) if word == "-o"]


def test_rsync_reaches_what_the_link_reached() -> None:
    host = dataclasses.replace(parse(XDG="/x"), proxy_jump=())
    words = build_ssh_words([Hop(host, ("/home/ada/my hosts",), "/keys/one")], 10.0)
    assert words[:9] == ["ssh", "-x", "-T", "-p", "2222", "-l", "ada", "-i", "/keys/one"]
    assert {
        "BatchMode=yes",
        "ConnectTimeout=10",
        "StrictHostKeyChecking=yes",
        'UserKnownHostsFile="/home/ada/my hosts"',
        "KexAlgorithms=^curve25519-sha256",
        "HostName=10.0.0.1",
        "HostKeyAlias=farm",
        "IdentitiesOnly=yes",
        "IdentityAgent=/x/agent.sock",
        "RemoteCommand=none",
        "ClearAllForwardings=yes",
        "ProxyJump=none",
    } <= set(options_of(words))


@pytest.mark.parametrize(
    ("flags", "offered", "wanted"),
    [
        (
            "flags\t\t: fpu aes avx",
            "chacha,aes128-gcm@openssh.com,aes128-ctr",
            "aes128-gcm@openssh.com,chacha,aes128-ctr",
        ),
        ("Features\t: fp asimd aes", "aes256-ctr,aes128-gcm@openssh.com", "aes128-gcm@openssh.com,aes256-ctr"),
        ("flags\t\t: fpu avx vaes", "chacha,aes128-gcm@openssh.com", ""),
        ("flags\t\t: fpu aes", "chacha,aes256-ctr", ""),
    ],
)
def test_rsync_takes_the_cipher_that_costs_least_of_those_that_ssh_would_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, offered: str, wanted: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n")
    monkeypatch.setattr(ssh_rsync, "CPUINFO", tmp_path / "cpuinfo")
    ssh_rsync.has_aes.cache_clear()
    host = parse_ssh_answer(f"hostname n\nuser ada\nciphers {offered}\n", "n", {}, HOME)
    options = [option for option in options_of(build_ssh_words([Hop(host, ("/k",), "")], 10.0)) if "Ciphers" in option]
    ssh_rsync.has_aes.cache_clear()
    assert options == ([f"Ciphers={wanted}"] if wanted else [])


def test_an_ipv6_address_stands_in_brackets_before_the_path() -> None:
    host = SshHost(alias="fd00::1", hostname="fd00::1", user="ada")
    assert build_target(host, ["ssh"]).prefix == "ada@[fd00::1]:"


def test_a_login_by_the_agent_lets_rsync_ask_the_agent() -> None:
    host = SshHost(alias="n", hostname="n", user="ada", agent="/a")
    options = options_of(build_ssh_words([Hop(host, ("/k",), "")], 10.0))
    assert "IdentityAgent=/a" in options
    assert "IdentitiesOnly=yes" not in options
