"""What to do when the reader of our output is gone."""

from __future__ import annotations

import io
import os
import select
from typing import IO, Any
from weakref import WeakSet

_UNREAD: WeakSet[IO[Any]] = WeakSet()
"""Streams whose reader is gone: they lead to /dev/null by now, which does not tell it."""


def drain_to_nowhere(stream: IO[Any], error: OSError) -> None:
    """Point a stream without a reader at /dev/null, so that Python's own flush at exit cannot change the exit code."""
    if isinstance(error, BrokenPipeError):
        _UNREAD.add(stream)
    try:
        number = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def wait_read(stream: IO[Any], timeout_s: float) -> bool:
    """Wait a while; False as soon as nobody reads what is written to a stream."""
    if stream in _UNREAD:
        return False
    try:
        number = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return True
    poll = select.poll()
    poll.register(number, 0)
    return not any(what & (select.POLLERR | select.POLLNVAL) for _, what in poll.poll(timeout_s * 1000))
