"""Asks whoever sits at the terminal before something goes that does not come back."""

from __future__ import annotations

import sys

from orchestrator.errors import UsageError


def confirm(size: str, verb: str, done: str, listed: str = "") -> None:
    """Ask before something is done to so many things, which are listed above the question.

    Raises:
        UsageError: the answer is no, or nobody can be asked.
    """
    remedy = f"add --yes to {verb} without being asked"
    if not sys.stdin.isatty():
        raise UsageError(f"{size} would be {done}, and nobody can be asked", remedy=remedy)
    # On stdout it would stand in the way of --json.
    sys.stderr.write(f"{listed}{verb} {size}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError(f"nothing was {done}", remedy=remedy)
