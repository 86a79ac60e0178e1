"""What to do when the reader of our output is gone."""

from __future__ import annotations

import io
import os
from typing import IO, Any


def drain_to_nowhere(stream: IO[Any]) -> None:
    """Point a stream without a reader at /dev/null, so that Python's own flush at exit cannot change the exit code."""
    try:
        number = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
