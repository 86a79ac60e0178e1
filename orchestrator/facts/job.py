"""What the script needs: modules, packages, paths, trackers, the code itself."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class JobFacts(FactGroup):
    """What the script needs: modules, packages, paths, trackers, the code itself."""
