from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from orchestrator.transport.hostkeys import KnownHosts, Standing, fingerprint, parse_known_hosts

ED = "ssh-ed25519"
KEY, OTHER = b"\0\0\0\x0bssh-ed25519" + b"k" * 32, b"\0\0\0\x0bssh-ed25519" + b"o" * 32


def line(names: str, key: bytes = KEY, marker: str = "", key_type: str = ED) -> str:
    return f"{marker} {names} {key_type} {base64.b64encode(key).decode()} a comment\n".lstrip()


def judge(tmp_path: Path, text: str, name: str) -> tuple[Standing, str, str]:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    judged = KnownHosts().judge(name, ED, KEY, [str(file)])
    return judged.standing, judged.where.removeprefix(str(file)), judged.authority.removeprefix(str(file))


@pytest.mark.parametrize(
    ("names", "name", "known"),
    [
        ("node1,10.0.0.1", "node1", True),
        ("node1,10.0.0.1", "10.0.0.1", True),
        ("NODE1", "node1", True),
        ("node1", "node11", False),
        ("10.0.*", "10.0.7.8", True),
        ("node?", "node7", True),
        ("node?", "node77", False),
        ("10.0.*,!10.0.0.9", "10.0.0.8", True),
        ("10.0.*,!10.0.0.9", "10.0.0.9", False),
        ("!10.0.0.9", "10.0.0.8", False),
        ("[node1]:2222", "[node1]:2222", True),
        ("[node1]:2222", "node1", False),
        ("node1", "[node1]:2222", False),
        ("node.1", "nodeX1", False),
        ("[::1]:2222", "[::1]:2222", True),
    ],
)
def test_which_lines_speak_of_a_host(tmp_path: Path, names: str, name: str, known: bool) -> None:  # noqa: FBT001 - a column of the table
    assert judge(tmp_path, line(names), name)[0] == ("known" if known else "unknown")


def test_names_that_ssh_keygen_hashed_are_found(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    words = key.with_suffix(".pub").read_text().split()
    file.write_text(f"node1 {words[0]} {words[1]}\n[node2]:2222 {words[0]} {words[1]}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "node" not in file.read_text()
    blob = base64.b64decode(words[1])
    known = KnownHosts()
    standings = [known.judge(name, ED, blob, [str(file)]).standing for name in ("node1", "[node2]:2222", "node2")]
    assert standings == ["known", "known", "unknown"]
    shown = subprocess.run(["ssh-keygen", "-l", "-f", f"{key}.pub"], check=True, capture_output=True, text=True).stdout
    assert fingerprint(blob) in shown


def test_another_key_of_the_same_host_is_a_change_and_names_its_line(tmp_path: Path) -> None:
    assert judge(tmp_path, "# old\n" + line("node1", OTHER), "node1") == ("changed", ":2", "")


def test_one_of_two_known_keys_is_known(tmp_path: Path) -> None:
    assert judge(tmp_path, line("node1", OTHER) + line("node1"), "node1")[:2] == ("known", ":2")


def test_revoked_wins_over_known(tmp_path: Path) -> None:
    assert judge(tmp_path, line("node1") + line("*", marker="@revoked"), "node1")[:2] == ("revoked", ":2")


def test_another_revoked_key_says_nothing(tmp_path: Path) -> None:
    assert judge(tmp_path, line("node1") + line("*", OTHER, marker="@revoked"), "node1")[0] == "known"


def test_a_certificate_authority_makes_no_key_known_and_none_changed(tmp_path: Path) -> None:
    assert judge(tmp_path, line("*.lab", OTHER, "@cert-authority"), "node1.lab") == ("unknown", "", ":1")


def test_a_security_key_line_is_no_change_of_an_ordinary_key(tmp_path: Path) -> None:
    assert judge(tmp_path, line("node1", OTHER, key_type="sk-ssh-ed25519@openssh.com"), "node1")[0] == "unknown"


def test_lines_that_are_none_do_no_harm() -> None:
    text = (
        "\n   \n#c\nonly two\nnode1 ssh-ed25519 !!!notbase64\n" + line("node1") + "@revoked\n|1|broken " + line("x")[2:]
    )
    assert [host.where for host in parse_known_hosts(text, "f") if host.matches("node1")] == ["f:6"]


@pytest.mark.parametrize("hashed", [False, True])
def test_a_remembered_key_is_known_here_and_to_openssh(tmp_path: Path, hashed: bool) -> None:  # noqa: FBT001 - parametrized
    file = tmp_path / "ssh" / "known_hosts"
    known = KnownHosts()
    known.remember("[node1]:2222", ED, KEY, str(file), hashed=hashed)
    known.remember("node2", ED, OTHER, str(file), hashed=hashed)
    known.remember("node2", ED, OTHER, str(file), hashed=hashed)
    assert known.judge("[node1]:2222", ED, KEY, [str(file)]).standing == "known"
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert len(file.read_text().splitlines()) == 2
    assert ("node2" in file.read_text()) is not hashed
    found = subprocess.run(["ssh-keygen", "-F", "[node1]:2222", "-f", str(file)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_a_file_without_a_last_newline_keeps_its_last_line(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(line("node1").rstrip("\n"))
    KnownHosts().remember("node2", ED, OTHER, str(file), hashed=False)
    assert [host.patterns for host in parse_known_hosts(file.read_text(), "f")] == ["node1", "node2"]


def test_a_file_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(line("node1"))
    known = KnownHosts()
    known.key_types("node1", [str(file)])
    file.unlink()
    assert known.judge("node1", ED, KEY, [str(file)]).standing == "known"
