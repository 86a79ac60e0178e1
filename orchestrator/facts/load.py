"""How fast every GPU, or the processors, are under load."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class LoadFacts(FactGroup):
    """How fast every GPU, or the processors, are under load."""
