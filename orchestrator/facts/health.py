"""How well the GPUs are, as the driver and the kernel tell it."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class HealthFacts(FactGroup):
    """How well the GPUs are, as the driver and the kernel tell it."""
