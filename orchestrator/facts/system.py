"""The machine under the session: processors, mounts, kernel log, stuck processes, security modules."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class SystemFacts(FactGroup):
    """The machine under the session: processors, mounts, kernel log, stuck processes, security modules."""
