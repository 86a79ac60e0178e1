"""Who may call a collective: the rank's own process, one thread at a time.

A forked child has its parent's connections and would talk in its name; of two threads nobody knows whose call the
other ranks' next one is. Both would hang without a word.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from orchestrator.distributed.errors import DistributedError

_lock = threading.RLock()
_called = [""]


@contextlib.contextmanager
def turn(name: str, pid: int) -> Iterator[None]:
    """Hold the turn for a collective of the process that joined the group.

    Raises:
        DistributedError: this is a child of that process, or another thread is in a collective.
    """
    if os.getpid() != pid:
        raise DistributedError(
            f"{name} was called in a child process of the rank: it has no place in the group; start ranks with torchrun"
        )
    if not _lock.acquire(blocking=False):
        raise DistributedError(
            f"{name} was called while another thread of this rank is in {_called[0]}: call collectives from one thread"
        )
    before, _called[0] = _called[0], name
    try:
        yield
    finally:
        _called[0] = before
        _lock.release()
