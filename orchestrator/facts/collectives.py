"""What real collectives over the nodes gave."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class CollectivesFacts(FactGroup):
    """What real collectives over the nodes gave."""
