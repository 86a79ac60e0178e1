"""Brings paths of the project into the folder of a node: a few small files over the open link, more of them by rsync."""

from __future__ import annotations

import base64
import contextlib
import marshal
import os
import stat
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

from orchestrator.node.boot import MARSHAL_VERSION
from orchestrator.node.tree_rows import open_file, to_bytes
from orchestrator.phases.rsync import push_paths
from orchestrator.phases.tree import Tree
from orchestrator.phases.workdir import Keeper

CARRIED_BYTES = 2 << 20
"""More is faster by rsync, whose own login costs a node and the launch host as much as this."""
PACKED_BYTES = 512 << 10
CARRIED_PATHS = 1000


class Packer:
    """The project's files as they go to nodes; most nodes need the same ones, and they are packed once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._packing = threading.Lock()
        self._packed: dict[tuple[str, ...], str | None] = {}

    def pack(self, paths: Sequence[str]) -> str | None:
        """Pack what is at these paths; None when it is much."""
        key = tuple(paths)
        with self._packing:
            if key not in self._packed:
                self._packed[key] = pack_paths(self.tree, paths)
            return self._packed[key]


def bring_paths(keeper: Keeper, packer: Packer, workdir: str, paths: Sequence[str]) -> None:
    """Bring these paths of the project into the folder on the node.

    Raises:
        PushError: not everything arrived.
        LinkLostError: the node does not answer.
    """
    packed = packer.pack(paths)
    if packed is None:
        push_paths(keeper.link, packer.tree.root, workdir, paths)
    else:
        keeper.put(packed)


def pack_paths(tree: Tree, paths: Sequence[str]) -> str | None:
    """Pack what is at these paths; None when it is much."""
    wanted = set(paths)
    entries = [entry for entry in tree.manifest.entries if entry.path in wanted]
    if len(entries) > CARRIED_PATHS or sum(entry.size for entry in entries) > CARRIED_BYTES:
        return None
    folders = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}
    rows: list[tuple[str, str, int, bytes]] = []
    # What has gone meanwhile, or is another by now, is found when the node proves what it has.
    for folder in sorted(folders | {entry.path for entry in entries if entry.kind == "dir"}):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            rows.append((folder, "dir", _mode(_full(tree.root, folder)) | stat.S_IRWXU, b""))
    for entry in entries:
        full = _full(tree.root, entry.path)
        with contextlib.suppress(OSError):
            if entry.kind == "link":
                rows.append((entry.path, "link", 0, os.readlink(full)))  # noqa: PTH115 - to the byte
            elif entry.kind == "file":
                rows.append((entry.path, "file", _mode(full) | stat.S_IRUSR | stat.S_IWUSR, _read(full)))
    data = zlib.compress(marshal.dumps(rows, MARSHAL_VERSION), 3)
    return base64.b64encode(data).decode("ascii") if len(data) <= PACKED_BYTES else None


def _full(root: Path, path: str) -> bytes:
    return os.fsencode(root) + b"/" + to_bytes(path)


def _mode(full: bytes) -> int:
    return stat.S_IMODE(os.lstat(full).st_mode) & 0o777


def _read(full: bytes) -> bytes:
    with os.fdopen(open_file(full), "rb") as file:
        # It may have grown since.
        return file.read(CARRIED_BYTES)
