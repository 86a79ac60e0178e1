"""Broken nodes make their rows of docs/errors.md, each told by the real command on real sshd nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cluster import Cluster, start_cluster
from errors_page import build_row, check_names, check_row

pytestmark = pytest.mark.namespaces
TITLE = "Broken nodes"
PORT = "29411"
Fault = Callable[[Cluster], AbstractContextManager[None]]


@dataclass(frozen=True)
class Case:
    """A fault, words for the lines of the node list, and the command that meets it."""

    name: str
    fault: Fault = field(default=lambda _: nullcontext())
    line: str = ""
    """Words for node 2's line; those for the head's stand in `head`."""
    head: str = ""
    command: str = "check"
    long: bool = False


@contextmanager
def known_hosts(cluster: Cluster, change: Callable[[list[str]], list[str]]) -> Iterator[None]:
    text = cluster.known_hosts.read_text()
    cluster.known_hosts.write_text("\n".join(change(text.splitlines())) + "\n")
    try:
        yield
    finally:
        cluster.known_hosts.write_text(text)


def swap_key(lines: list[str]) -> list[str]:
    """Give the second node the key of the first."""
    return [lines[0], " ".join([lines[1].split()[0], *lines[0].split()[1:]])]


@contextmanager
def sshd(cluster: Cluster, option: str) -> Iterator[None]:
    cluster.restart_sshd(2, *option.split("; "))
    try:
        yield
    finally:
        cluster.restart_sshd(2)


@contextmanager
def done_and_undone(do: Callable[[], object], undo: Callable[[], object]) -> Iterator[None]:
    do()
    try:
        yield
    finally:
        undo()


def on_node(cluster: Cluster, do: str, undo: str) -> AbstractContextManager[None]:
    def run(script: str) -> None:
        cluster.exec(2, ["sh", "-ec", script]).check_returncode()

    return done_and_undone(lambda: run(do), lambda: run(undo))


@contextmanager
def port_taken(cluster: Cluster) -> Iterator[None]:
    server = f"{cluster.fake_python} -m http.server {PORT} >/dev/null 2>&1 & echo $!"
    wait = f"until ss -ltn | grep -q :{PORT}; do sleep 0.05; done"
    pid = int(cluster.exec(1, ["sh", "-c", f"{server}; {wait}"]).stdout)
    try:
        yield
    finally:
        cluster.kill_process(1, pid)


def small_disk(cluster: Cluster) -> AbstractContextManager[None]:
    path = f"{cluster.spec.home_on_node(2)}/.aorta"
    return done_and_undone(lambda: cluster.mount_small(2, path, 40), lambda: cluster.unmount(2, path))


def read_only_home(cluster: Cluster) -> AbstractContextManager[None]:
    home = cluster.spec.home_on_node(2)
    return on_node(cluster, f"mount -o remount,bind,ro {home}", f"mount -o remount,bind,rw {home}")


@contextmanager
def python_with(cluster: Cluster, torch: str) -> Iterator[None]:
    """Make an environment on node 2 with this torch, or none."""
    base = Path(os.path.realpath(sys.executable))
    root = cluster.home(2) / "env"
    site = root / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True, exist_ok=True)
    (root / "bin").mkdir(exist_ok=True)
    (root / "bin" / "python3").symlink_to(base)
    (root / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    if torch:
        (site / "torch").mkdir()
        (site / "torch" / "__init__.py").touch()
        (site / "torch" / "version.py").write_text(f"__version__ = '{torch}'\ncuda = None\nhip = None\n")
        (site / f"torch-{torch}.dist-info").mkdir()
        (site / f"torch-{torch}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {torch}\n")
    try:
        yield
    finally:
        cluster.exec(2, ["rm", "-r", "env"]).check_returncode()


CASES = [
    Case("unknown host key", lambda c: known_hosts(c, lambda lines: lines[:1])),
    Case("changed host key", lambda c: known_hosts(c, swap_key)),
    Case("no sshd on that port", line="port=9"),
    Case(
        "packets vanish",
        lambda c: done_and_undone(lambda: c.drop(2), lambda: c.undrop(2)),
        command="check --connect-timeout 1s",
    ),
    Case(
        "sshd hangs",
        lambda c: done_and_undone(lambda: c.freeze_sshd(2), lambda: c.thaw_sshd(2)),
        command="check --connect-timeout 1s",
    ),
    Case("key refused", lambda c: sshd(c, "AuthorizedKeysFile=none")),
    Case("no such key file", line="key=/nowhere/id_ed25519", long=True),
    Case("user unknown", line="user=alice"),
    Case("passwords only", lambda c: sshd(c, "PubkeyAuthentication=no; PasswordAuthentication=yes"), long=True),
    Case("sshd runs its own command", lambda c: sshd(c, "ForceCommand=echo this account is closed")),
    Case("jump host not reached", line="jump={address}:9", long=True),
    Case("no such interpreter", line="python=/opt/none/bin/python3"),
    Case("no torch", lambda c: python_with(c, ""), line="python={home}/env/bin/python3"),
    Case("another torch", lambda c: python_with(c, "2.12.0"), line="python={home}/env/bin/python3"),
    Case("no such GPU", line="gpus=7", long=True),
    Case("no such interface", line="iface=ib0", long=True),
    Case("a data address that the head has not", head="addr=10.99.0.1"),
    Case(
        "a firewall before the head",
        lambda c: done_and_undone(lambda: c.block_port(1, int(PORT), "drop"), lambda: c.undrop(1)),
        command=f"check --master-port {PORT}",
    ),
    Case("rendezvous port taken", port_taken, command=f"check --master-port {PORT}"),
    Case("one machine twice", line="same"),
    Case("disk full", small_disk),
    Case("HOME cannot be written", read_only_home),
    Case("no rsync", lambda c: on_node(c, "mount --bind /dev/null /usr/bin/rsync", "umount /usr/bin/rsync")),
    Case(
        "a folder of somebody else's in the way",
        lambda c: on_node(c, "mkdir data && touch data/set.bin", "rm -r data"),
        command="launch --workdir ~/data train.py",
    ),
    Case("no code with `--no-push`", command="launch --no-push --workdir ~/nowhere train.py", long=True),
]


@pytest.fixture(scope="module")
def breakable() -> Iterator[Cluster]:
    with start_cluster(2) as cluster:
        yield cluster


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").touch()
    return folder


def write_lines(cluster: Cluster, case: Case, path: Path) -> None:
    """Write a node list in which a word of the case replaces the usual one of its key."""
    words = {
        "user": cluster.spec.user,
        "key": str(cluster.identity),
        "python": cluster.fake_python,
    }
    lines = []
    for k, changed in ((1, case.head), (2, case.line)):
        host = cluster.address(k)
        if changed == "same":
            host, changed = cluster.spec.name(1), ""  # noqa: PLW2901 - the line names the head once more
        given = changed.format(address=cluster.address(1), home=cluster.spec.home_on_node(2))
        own = dict(word.split("=", 1) for word in given.split())
        lines.append(" ".join([host, *(f"{key}={value}" for key, value in (words | own).items())]))
    path.write_text("\n".join(lines) + "\n")


def hidden(cluster: Cluster, project: Path) -> dict[str, str]:
    """What differs from cluster to cluster, and what the page says in its place."""
    return {
        cluster.address(1): "10.0.0.11",
        cluster.address(2): "10.0.0.12",
        cluster.spec.launch_address: "10.0.0.10",
        cluster.fake_python: "/opt/venv/bin/python3",
        str(cluster.identity): "~/.ssh/id_ed25519",
        str(cluster.known_hosts): "~/.ssh/known_hosts",
        f"{cluster.spec.home_on_node(2)}/.ssh/": "~/.ssh/",
        f"{cluster.spec.home_on_node(2)}/": "HOME/",
        str(project): "PROJECT",
    }


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[pytest.mark.long] if case.long else []) for case in CASES]
)
def test_a_broken_node_is_told_with_its_remedy(case: Case, breakable: Cluster, project: Path) -> None:
    write_lines(breakable, case, project / "node_ip_list.txt")
    with case.fault(breakable):
        done = breakable.run_launcher(case.command.split(), cwd=project)
    assert done.exit_code == 3, done
    check_row(TITLE, build_row(case.name, done.exit_code, done.stderr + done.stdout, hidden(breakable, project)))


def test_the_page_has_these_rows_and_no_others() -> None:
    check_names(TITLE, [case.name for case in CASES])
