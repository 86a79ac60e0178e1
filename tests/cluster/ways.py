"""How a test reaches the cluster's nodes through the transport itself, with an ssh_config of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster import Cluster, start_cluster

from orchestrator.errors import (
    AortaError,
)
from orchestrator.phases.connect import connect
from orchestrator.transport import Link
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
