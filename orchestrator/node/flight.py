"""Takes the flight recorders of the ranks of a run: what collectives each of them has called, and which are not over."""

from __future__ import annotations

from typing import Any, Dict

Facts = Dict[str, Any]


def take_dumps(folder: str, order: Facts) -> Facts:
    """Take the flight recorders."""
    del folder, order
    return {"ranks": [], "why": {}}
