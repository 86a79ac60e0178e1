from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orchestrator.transport.sshasked import Asked, find_matches, read_host_lines
from orchestrator.transport.sshconfig import ask_ssh


def write_ssh(folder: Path, config: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an ssh before the real one that reads one config of ours and counts its calls."""
    (folder / "config").write_text(config)
    program = folder / "ssh"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "calls"


NAMES = [f"10.0.0.{number}" for number in range(1, 9)]


@pytest.mark.parametrize(
    ("config", "calls"),
    [
        ("Host *\n  User ada\n", 1),
        ("User ada\nMatch final all\n  Port 23\n", 1),
        ("Host 10.0.0.1 10.0.0.2\n  User bob\nHost 10.* !10.0.0.8\n  Port 23\nHost=*\n  IdentityFile ~/%h\n", 3),
        ("Host 10.0.0.3\n  HostName 10.9.9.9\n", 2),
        ("Match host 10.0.0.4\n  User eve\n", 8),
        ('Host "10.0.0.5"\n  User eve\n', 8),
        ("HostName %h.cluster\n", 8),
        ("Host *\n  ProxyCommand nc 10.0.0.7 %p\n", 2),
        ("CanonicalizeHostname yes\nCanonicalDomains x\n", 8),
    ],
)
def test_one_answer_serves_those_of_whom_ssh_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, calls: int
) -> None:
    counted = write_ssh(tmp_path, config, monkeypatch)
    asked = Asked()
    found = [asked.ask(name) for name in NAMES]
    assert len(counted.read_text().splitlines()) == calls
    assert found == [ask_ssh(name) for name in NAMES]


def test_another_user_or_port_is_another_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = write_ssh(tmp_path, "Host *\n", monkeypatch)
    asked = Asked()
    for port in (None, 23, None, 23):
        assert asked.ask("a.b", user="ada", port=port).port == (port or 22)
    assert len(counted.read_text().splitlines()) == 2


def test_names_that_ssh_would_change_are_asked_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = write_ssh(tmp_path, "Host *\n", monkeypatch)
    asked = Asked()
    assert [asked.ask(name).hostname for name in ("UPPER", "Upper", "a_b")] == ["upper", "upper", "a_b"]
    assert len(counted.read_text().splitlines()) == 3


def test_host_lines_are_read_as_ssh_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("# Host x\n host = a* !ab\nHOST b?\nUser me\n")
    lines = read_host_lines([str(file)])
    assert lines == (("a*", "!ab"), ("b?",))
    assert [find_matches(lines, name) for name in ("a", "ab", "bc", "b")] == [
        (True, False),
        (False, False),
        (False, True),
        (False, False),
    ]
    assert read_host_lines([str(tmp_path / "none")]) is None
