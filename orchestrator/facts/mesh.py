"""How every node reaches every other one."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class MeshFacts(FactGroup):
    """How every node reaches every other one."""
