"""Reads single entries of a code tree and folds them into its hash; the launch host and the nodes use the very same code.

A row is [path, kind, executable, size, content]: kind is file, link, dir (an empty folder) or other; content is the
sha256 of a file or the target of a link. Paths are text in which bytes that are not UTF-8 stand as surrogates,
whatever the machine's locale is.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Iterable, List, Optional, Tuple

    Row = List[Any]
    Sign = Tuple[int, ...]

CHUNK = 1 << 20


def to_bytes(text: str) -> bytes:
    """Give the bytes that the file system knows."""
    return text.encode("utf-8", "surrogateescape")


def to_text(raw: bytes) -> str:
    """Give text that travels in JSON and comes back as the same bytes."""
    return raw.decode("utf-8", "surrogateescape")


def is_safe(path: str) -> bool:
    """Say whether a path stays inside the folder that it is joined to."""
    parts = "/" + path + "/"
    return "//" not in parts and "/./" not in parts and "/../" not in parts


def sign_of(info: os.stat_result) -> Sign:
    """Build what tells that a file is the very one that it was, and was not written since."""
    return (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_dev)


def hash_open(fd: int, size: int) -> str:
    """Build the sha256 of an open file's content, which is about so long."""
    from hashlib import sha256  # noqa: PLC0415 - where nothing has changed, nothing is hashed

    digest = sha256()
    done = 0
    # One byte more than there is: the end is seen without another read.
    while data := os.read(fd, min(size + 1, CHUNK)):
        digest.update(data)
        done += len(data)
        if done == size and len(data) < CHUNK:
            break
    return digest.hexdigest()


def file_row(path: str, info: os.stat_result, content: str) -> Row:
    """Build the row of a file."""
    return [path, "file", int(bool(info.st_mode & stat.S_IXUSR)), info.st_size, content]


def other_row(full: bytes, path: str, info: os.stat_result) -> Row:
    """Build the row of what is no file."""
    if stat.S_ISLNK(info.st_mode):
        return [path, "link", 0, 0, to_text(os.readlink(full))]
    return [path, "dir" if stat.S_ISDIR(info.st_mode) else "other", 0, 0, ""]


def hash_rows(rows: Iterable[Row]) -> str:
    """Fold rows into one tree hash; their order does not matter."""
    from hashlib import sha256  # noqa: PLC0415 - as above

    digest = sha256()
    for line in sorted(b"\0".join(to_bytes(str(value)) for value in row) for row in rows):
        digest.update(b"%d:" % len(line) + line)
    return digest.hexdigest()


def read_row(root: bytes, path: str) -> Optional[Row]:
    """Read one entry; None when nothing is there."""
    full = os.path.join(root, to_bytes(path))
    try:
        info = os.lstat(full)
        if not stat.S_ISREG(info.st_mode):
            return other_row(full, path, info)
        return file_row(path, info, hash_file(full, info.st_size))
    except (FileNotFoundError, NotADirectoryError):
        return None


def open_file(full: bytes) -> int:
    """Open a file to read it; a link is not followed, and a pipe is not waited for."""
    return os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def hash_file(full: bytes, size: int) -> str:
    """Build the sha256 of a file's content."""
    fd = open_file(full)
    try:
        return hash_open(fd, size)
    finally:
        os.close(fd)
