"""A project and several folders of this machine as nodes, for tests of the push with the real node program and rsync."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.phases.carry import Packer, bring_paths
from orchestrator.phases.push import Pushed, push_code
from orchestrator.phases.workdir import Keeper
from orchestrator.settings import Settings
from orchestrator.transport import Channel
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node


class CountedChannel:
    """A channel that notes the acts that are asked for."""

    def __init__(self, channel: Channel, acts: list[str]) -> None:
        self.acts = acts
        self.read, self.close = channel.read, channel.close
        self._send = channel.send

    def send(self, order: Mapping[str, Any]) -> None:
        self.acts.append(order["act"])
        self._send(order)


class CountedLink(LocalLink):
    """This machine as a node of its own: the folder is given per node, and the requests are counted."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(Node(name=name, host="127.0.0.1"))
        self.folder = folder
        self.pythons = (sys.executable,)
        self.acts: list[str] = []

    def open(self, program: str, request: Mapping[str, Any]) -> Channel:
        self.acts.append(request["act"])
        named = {**request, "workdir": str(self.folder), "other": ""}
        return CountedChannel(super().open(program, named), self.acts)


class Room:
    """A project, some nodes, and a count of the rsyncs that were started."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tmp_path = tmp_path
        self.project = tmp_path / "project"
        self.project.mkdir()
        self.copies: list[str] = []
        # What is remembered of projects lies in the HOME of the launch host.
        home = tmp_path.parent / f"{tmp_path.name}-home"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))

        def counted(keeper: Keeper, packer: Packer, workdir: str, paths: Sequence[str]) -> None:
            self.copies.append(keeper.node)
            bring_paths(keeper, packer, workdir, paths)

        monkeypatch.setattr("orchestrator.phases.push.bring_paths", counted)

    def write(self, path: str, text: str = "x") -> Path:
        file = self.project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def link(self, name: str, folder: str | None = None) -> CountedLink:
        return CountedLink(name, self.tmp_path / (folder or name))

    def push(self, *links: CountedLink, **settings: Any) -> Pushed:
        self.copies.clear()
        for link in links:
            link.acts.clear()
        values = {"project": self.project, "experiments_dir": self.project / "experiments", **settings}
        return push_code(links, (), Settings(**values), "run")


WAYS = ("over the link", "by rsync")


def choose_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files travel this way; by itself what is as small as in these tests goes over the link."""
    if way == "by rsync":
        monkeypatch.setattr("orchestrator.phases.carry.CARRIED_BYTES", -1)


def snapshot(folder: Path) -> dict[Path, tuple[int, int, str]]:
    """Mode, time and content of everything below a folder, the folder itself included."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        info = path.lstat()
        is_file = path.is_file() and not path.is_symlink()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if is_file else ""
        found[path] = (info.st_mode, info.st_mtime_ns, content)
    return found


def code_of(folder: Path) -> set[bytes]:
    """All paths below a node's folder but our marker."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    return {os.fsencode(path) for path in paths if path.parts[0] != ".aorta-code"}
