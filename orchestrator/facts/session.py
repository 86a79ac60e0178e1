"""What the SSH session may do and for how long: limits, control groups, log-out, shell variables."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class SessionFacts(FactGroup):
    """What the SSH session may do and for how long: limits, control groups, log-out, shell variables."""
