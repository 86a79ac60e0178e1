"""Reads single entries of a code tree and folds them into its hash; the launch host and the nodes use the very same code.

A row is [path, kind, executable, size, content]: kind is file, link, dir (an empty folder) or other; content is the
sha256 of a file or the target of a link. Paths are text in which bytes that are not UTF-8 stand as surrogates,
whatever the machine's locale is.
"""

from __future__ import annotations

import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterable, List, Optional

Row = List[Any]
CHUNK = 1 << 20
THREADS = 4


def to_bytes(text: str) -> bytes:
    """Give the bytes that the file system knows."""
    return text.encode("utf-8", "surrogateescape")


def to_text(raw: bytes) -> str:
    """Give text that travels in JSON and comes back as the same bytes."""
    return raw.decode("utf-8", "surrogateescape")


def is_safe(path: str) -> bool:
    """Say whether a path stays inside the folder that it is joined to."""
    return all(part not in ("", ".", "..") for part in path.split("/"))


def hash_file(path: bytes) -> str:
    """Build the sha256 of a file's content; a link is not followed."""
    digest = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb", buffering=0) as file:
        while True:
            data = file.read(CHUNK)
            if not data:
                return digest.hexdigest()
            digest.update(data)


def read_row(root: bytes, path: str, wanted_size: Optional[int] = None) -> Optional[Row]:
    """Read one entry; None when nothing is there. With another size than the wanted one it is not hashed."""
    full = os.path.join(root, to_bytes(path))
    try:
        info = os.lstat(full)
        if stat.S_ISREG(info.st_mode):
            same_size = wanted_size is None or wanted_size == info.st_size
            content = hash_file(full) if same_size else "?"
            return [path, "file", int(bool(info.st_mode & stat.S_IXUSR)), info.st_size, content]
        if stat.S_ISLNK(info.st_mode):
            return [path, "link", 0, 0, to_text(os.readlink(full))]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [path, "dir" if stat.S_ISDIR(info.st_mode) else "other", 0, 0, ""]


def hash_rows(rows: Iterable[Row]) -> str:
    """Fold rows into one tree hash; their order does not matter."""
    digest = hashlib.sha256()
    for line in sorted(b"\0".join(to_bytes(str(value)) for value in row) for row in rows):
        digest.update(b"%d:" % len(line) + line)
    return digest.hexdigest()


def map_threads(work: Callable[[Any], Any], items: List[Any]) -> List[Any]:
    """Do the same for every item in a few threads: hashing and disks wait outside the interpreter's lock."""
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, items, chunksize=1))
