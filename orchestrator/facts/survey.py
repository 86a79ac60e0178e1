"""What was measured between nodes or under load: beside the facts of each node, all that checks judge."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.facts.collectives import CollectivesFacts
from orchestrator.facts.group import FactGroup
from orchestrator.facts.load import LoadFacts
from orchestrator.facts.mesh import MeshFacts
from orchestrator.facts.reach import ReachFacts


class Survey(FactGroup):
    """The answers that need several nodes or time; None: not measured in this call."""

    named_interfaces: tuple[Mapping[str, str], ...] = ()
    """The variables of the run that name interfaces, as they are given for each node."""
    reach: ReachFacts | None = None
    mesh: MeshFacts | None = None
    collectives: CollectivesFacts | None = None
    load: LoadFacts | None = None
