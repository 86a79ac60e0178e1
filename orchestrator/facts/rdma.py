"""InfiniBand and RoCE ports, and what GPUDirect needs."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class RdmaFacts(FactGroup):
    """InfiniBand and RoCE ports, and what GPUDirect needs."""
