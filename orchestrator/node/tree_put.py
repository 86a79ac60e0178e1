"""Puts a few small files into the code folder, as they came with an order: that costs no login and no rsync."""

from __future__ import annotations

import binascii
import marshal
import os
import stat
import zlib

from orchestrator.node.tree_change import open_folder
from orchestrator.node.tree_rows import is_safe, to_bytes
from orchestrator.node.tree_state import MARKER_FOLDER
from orchestrator.node.wire import write_all

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import List, Tuple

    Entry = Tuple[str, str, int, bytes]

FRESH = b".aorta-put-"


def put(workdir: str, packed: str) -> None:
    """Put files (their content), links (their target) and folders where they belong; folders come before their content."""
    entries: List[Entry] = marshal.loads(zlib.decompress(binascii.a2b_base64(packed)))  # noqa: S302 - from the launch host
    for path, kind, mode, content in entries:
        if not is_safe(path) or path.split("/")[0] == MARKER_FOLDER:
            continue
        folder, _, name = path.rpartition("/")
        fd = open_folder(workdir, folder)
        try:
            if kind == "dir":
                make_folder(fd, to_bytes(name), mode)
            else:
                replace(fd, to_bytes(name), kind, mode, content)
        finally:
            os.close(fd)


def make_folder(fd: int, name: bytes, mode: int) -> None:
    """Make a folder; one that is there stays as it is."""
    try:
        os.mkdir(name, 0o700, dir_fd=fd)
    except FileExistsError:
        return
    made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    try:
        # What it has from the folder above stays: its content is to belong to the same group.
        os.fchmod(made, mode | os.fstat(made).st_mode & stat.S_ISGID)
    finally:
        os.close(made)


def replace(fd: int, name: bytes, kind: str, mode: int, content: bytes) -> None:
    """Put a file or a link in one step in the place of what was there."""
    fresh = FRESH + os.urandom(6).hex().encode()
    try:
        if kind == "link":
            os.symlink(content, fresh, dir_fd=fd)
        else:
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=fd)
            try:
                write_all(file, content)
                os.fchmod(file, mode)
            finally:
                os.close(file)
        os.replace(fresh, name, src_dir_fd=fd, dst_dir_fd=fd)
    except BaseException:
        try:
            os.unlink(fresh, dir_fd=fd)
        except FileNotFoundError:
            pass
        raise
