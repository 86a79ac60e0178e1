"""Interfaces, routes and kernel settings beyond the addresses."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class NetworkFacts(FactGroup):
    """Interfaces, routes and kernel settings beyond the addresses."""
