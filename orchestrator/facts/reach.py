"""How every node came to the head."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class Attempt(FactGroup):
    """How one node came to one address of the head."""

    address: str
    ok: bool
    local: str = ""
    interface: str = ""
    step: str = ""
    detail: str = ""
    took_ms: float = 0.0


class ReachFacts(FactGroup):
    """The port that the head held and the attempts of every node, in node rank order."""

    port: int | None = None
    trouble: str = ""
    """Why the head could not hold the port."""
    owner: str = ""
    """Who holds it instead."""
    winner: str = ""
    """The address that all nodes reached."""
    attempts: tuple[tuple[Attempt, ...], ...] = ()
