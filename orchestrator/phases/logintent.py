"""Remembers what is about to go into a node's merged log, so that whoever goes on after kill -9 ends what was begun."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from orchestrator.light_dataclass import dataclass

WIDTH = 64
"""Of the one line of the file: a shorter one leaves nothing of a longer one behind it."""


@dataclass(frozen=True)
class Intent:
    """What came last: the file it is of, where in it it begins, and how long the merged log was before."""

    name: str = ""
    begin: int = 0
    merged: int = 0


def write_intent(path: Path, intent: Intent) -> None:
    """Note what will be written next, in place of what was noted before.

    Raises:
        OSError: the disk of the launch host is full or gone.
    """
    line = f"{intent.name} {intent.begin} {intent.merged}".ljust(WIDTH - 1) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(handle, line.encode(), 0)
    finally:
        os.close(handle)


def read_intent(path: Path) -> Intent:
    """Read what was noted last; nothing of any file where there is none."""
    with contextlib.suppress(OSError, ValueError):
        name, begin, merged = path.read_text("ascii", "replace").split()
        return Intent(name, int(begin), int(merged))
    return Intent()
