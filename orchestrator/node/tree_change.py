"""Changes the folder that takes the code: marks it as ours, removes what was pushed before and is gone here."""

from __future__ import annotations

import errno
import os
import stat
import time

from orchestrator.node.fastjson import dumps
from orchestrator.node.tree_rows import is_safe, to_bytes
from orchestrator.node.tree_state import MARKER, MARKER_FOLDER, PUSHED, read_pushed

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Set

    from orchestrator.node.tree_state import Pushed

NONCE = "nonce-"
OLD_NONCE_S = 3600.0
NOT_EMPTY = (errno.EEXIST, errno.ENOTEMPTY)


def write_json(path: str, value: Any) -> None:
    """Write one of our own files by rename: nodes that share the folder may do so at the same moment."""
    fresh = "%s.%s" % (path, os.urandom(6).hex())
    try:
        with open(fresh, "w", encoding="ascii") as file:
            file.write(dumps(value))
        os.replace(fresh, path)
    except BaseException:
        if os.path.lexists(fresh):
            os.unlink(fresh)
        raise


def mark(workdir: str, marker: Dict[str, Any], kinds: Pushed) -> None:
    """Make the folder ours and note beforehand what will be put there, so that a broken push can be tidied later."""
    os.makedirs(os.path.join(workdir, MARKER_FOLDER), exist_ok=True)
    before = read_pushed(workdir)
    note_pushed(workdir, before, {**before, **kinds})
    write_json(os.path.join(workdir, MARKER), marker)


def note_pushed(workdir: str, before: Pushed, pushed: Pushed) -> bool:
    """Note what we have put into the folder; say whether that is news."""
    if pushed == before:
        return False
    write_json(os.path.join(workdir, PUSHED), pushed)
    return True


def write_nonce(workdir: str, token: str, index: int) -> None:
    """Leave a sign by which other nodes see that they share this folder."""
    folder = os.path.join(workdir, MARKER_FOLDER)
    with open(os.path.join(folder, "%s%s-%d" % (NONCE, token, index)), "w", encoding="ascii"):
        pass
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            if name.startswith(NONCE) and time.time() - os.stat(path).st_mtime > OLD_NONCE_S:
                os.unlink(path)
        except FileNotFoundError:
            continue


def read_nonces(workdir: str, token: str) -> List[int]:
    """List the nodes whose sign stands here."""
    start = "%s%s-" % (NONCE, token)
    names = os.listdir(os.path.join(workdir, MARKER_FOLDER))
    return sorted(int(name[len(start) :]) for name in names if name.startswith(start))


def remove_nonces(workdir: str, token: str) -> None:
    """Take the signs of one push away."""
    for index in read_nonces(workdir, token):
        try:
            os.unlink(os.path.join(workdir, MARKER_FOLDER, "%s%s-%d" % (NONCE, token, index)))
        except FileNotFoundError:
            continue


def remove(workdir: str, paths: Iterable[str], keep_folders: Set[str]) -> List[str]:
    """Remove paths below the folder, never through a link, and the folders which that leaves empty."""
    removed: List[str] = []
    folders: Set[str] = set()
    for path in paths:
        if is_safe(path) and path.split("/")[0] != MARKER_FOLDER and remove_one(workdir, path):
            removed.append(path)
            folders.update(upper_folders(path))
    for folder in sorted(folders - keep_folders, key=lambda text: text.count("/"), reverse=True):
        remove_one(workdir, folder + "/__pycache__")
        remove_one(workdir, folder)
    return removed


def upper_folders(path: str) -> List[str]:
    """List the folders above a path, without the root."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def remove_one(workdir: str, path: str) -> bool:
    """Remove one file, link or empty folder; say whether it was there and is gone."""
    folder, _, name = path.rpartition("/")
    try:
        fd = open_folder(workdir, folder)
    except OSError:
        return False  # gone, or a link stands in the way
    try:
        if stat.S_ISDIR(os.lstat(to_bytes(name), dir_fd=fd).st_mode):
            os.rmdir(to_bytes(name), dir_fd=fd)
        else:
            os.unlink(to_bytes(name), dir_fd=fd)
            remove_compiled(fd, name)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in NOT_EMPTY:
            return False
        raise
    finally:
        os.close(fd)
    return True


def open_folder(workdir: str, folder: str) -> int:
    """Open a folder below the work folder, part by part, refusing links."""
    fd = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
    for part in folder.split("/") if folder else []:
        try:
            below = os.open(to_bytes(part), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def remove_compiled(fd: int, name: str) -> None:
    """Remove what Python compiled from a module that is gone.

    A folder kept alive by its __pycache__ alone could still be imported, as a namespace package.
    """
    if not name.endswith(".py"):
        return
    try:
        cache = os.open(b"__pycache__", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    except OSError:
        return
    try:
        for entry in os.listdir(cache):
            if entry.startswith(name[:-2]) and entry.endswith(".pyc"):
                os.unlink(entry, dir_fd=cache)
    finally:
        os.close(cache)
