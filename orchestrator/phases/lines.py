"""Appends to files of one line a thing, so that a line that was torn never takes the next one with it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path


def append_line(path: Path, line: bytes) -> None:
    """Append one line, without its newline: two processes at a time give two lines.

    Raises:
        OSError: the disk is full or gone.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # A line that another writes can be seen half written at the edge of a page, and is not torn. Not every disk has locks.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        # Somebody died, or the disk was full, in the middle of the last one.
        end = os.lseek(handle, 0, os.SEEK_END)
        torn = end > 0 and os.pread(handle, 1, end - 1) != b"\n"
        whole = b"\n" * torn + line + b"\n"
        if os.write(handle, whole) < len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(handle)
