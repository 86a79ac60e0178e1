"""One live run a checkpoint directory: a lock that ends with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from datetime import datetime, timezone
from pathlib import Path

LOG = logging.getLogger("orchestrator.distributed")
LOCK = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems answer that know of no locks: NFS without its daemon, Lustre mounted without flock, some of FUSE."""
PATIENCE_S = 3.0
"""A run that was just killed may need a moment to be gone."""
_held: dict[str, tuple[int, int]] = {}
"""Path to file descriptor and count: the Checkpointers of one process share their lock."""


def take_lock(directory: Path, patience_s: float = PATIENCE_S) -> str:
    """Take the lock of a directory, give the word by which it is given back.

    A lock of the kind that belongs to the process: forked data-loader workers do not hold it on after its death.

    Raises:
        OSError: another process holds it; the text says which.
    """
    path = os.path.realpath(directory / LOCK)
    if path in _held:
        place, count = _held[path]
        _held[path] = (place, count + 1)
        return path
    place = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + patience_s
    while True:
        try:
            fcntl.lockf(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno in NO_LOCKS:
                LOG.warning("%s knows no locks: nobody notices when two runs save there at once", directory)
                break
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                os.close(place)
                raise
            if time.monotonic() > end:
                holder = _render_holder(os.pread(place, 1000, 0))
                os.close(place)
                raise BlockingIOError(
                    errno.EAGAIN,
                    f"another live run saves there ({holder or 'it left no word'}): "
                    "wait for its end, stop it, or give this run a directory of its own",
                ) from None
        time.sleep(0.1)
    words = {"host": socket.gethostname(), "pid": os.getpid(), "run": os.environ.get("AORTA_RUN_ID", "")}
    words["since"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    os.ftruncate(place, 0)
    os.pwrite(place, json.dumps(words).encode(), 0)
    _held[path] = (place, 1)
    return path


def _render_holder(data: bytes) -> str:
    try:
        words = json.loads(data)
        run = f", run {words['run']}" if words["run"] else ""
        return f"process {words['pid']} on {words['host']} since {words['since']}{run}"
    except (ValueError, KeyError, TypeError):
        return ""


def give_lock_back(path: str) -> None:
    """Give a lock back; it is free when the last that took it in this process has."""
    place, count = _held[path]
    if count > 1:
        _held[path] = (place, count - 1)
        return
    del _held[path]
    os.close(place)
