"""What one check saw on one node, before the catalogue puts the name and the node to it."""

from __future__ import annotations

from orchestrator.light_dataclass import dataclass
from orchestrator.values import Status

HOUR_MIN = 60


@dataclass(frozen=True)
class Seen:
    """A status, what was measured, and the line to type where something is wrong."""

    status: Status
    detail: str
    remedy: str = ""


def ok(detail: str) -> Seen:
    """Say that it is as it should be, with what was measured."""
    return Seen("ok", detail)


def warn(detail: str, remedy: str) -> Seen:
    """Say that it will run and hurt."""
    return Seen("warn", detail, remedy)


def fail(detail: str, remedy: str) -> Seen:
    """Say that it would not run."""
    return Seen("fail", detail, remedy)


def skip(detail: str) -> Seen:
    """Say that it does not apply, and why."""
    return Seen("skip", detail)


def unknown(detail: str, remedy: str = "") -> Seen:
    """Say that it could not be measured, and why."""
    return Seen("unknown", detail, remedy)


def tell_age(seconds: float) -> str:
    """Say how long ago something was."""
    minutes = seconds / 60
    return f"{minutes:.0f} min ago" if minutes < HOUR_MIN else f"{minutes / HOUR_MIN:.1f} h ago"
