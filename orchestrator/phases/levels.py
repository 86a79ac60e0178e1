"""Levels 1 and 2 of a check: what needs the run's own interpreter on the nodes, and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.checks.catalogue import CATALOGUE
from orchestrator.facts import Survey
from orchestrator.facts.collectives import CollectivesFacts
from orchestrator.facts.load import LoadFacts
from orchestrator.phases.collectives import run_collectives
from orchestrator.phases.exercise import Crew
from orchestrator.phases.load import find_spared, run_load
from orchestrator.settings import Settings
from orchestrator.values import Finding

NEEDED = (
    "same-machine",
    "python",
    "torch",
    "torch-equal",
    "cuda-equal",
    "addresses",
    "master-port",
    "gpu-count",
    "gpu-free",
)
"""What has to be well before; a closed way between two other nodes is no reason: level 1 names it too."""


def measure_levels(
    crew: Crew, survey: Survey, found: Sequence[Finding], level: int, tell: Callable[[str], None]
) -> Survey:
    """Run the collectives, and at level 2 the load, and put what they gave to the survey."""
    broken = next((finding for finding in found if finding.status == "fail" and finding.check in NEEDED), None)
    if broken is not None or not crew.places:
        why = f"not run: {broken.check if broken else 'addresses'} failed"
        # A check that did not run is easily taken for one that found nothing.
        tell(f"level {level} was {why}")
        return survey.model_copy(update={"collectives": CollectivesFacts(not_run=why), "load": LoadFacts(not_run=why)})
    if is_wanted(1, crew.settings):
        survey = survey.model_copy(update={"collectives": run_spared(crew, tell)})
    if level > 1 and is_wanted(2, crew.settings):
        survey = survey.model_copy(update={"load": run_load(crew, tell)})
    return survey


def run_spared(crew: Crew, tell: Callable[[str], None]) -> CollectivesFacts:
    """Run the collectives, unless somebody else uses a GPU of theirs, whatever the checks may have been told."""
    spared = find_spared(crew) if crew.device == "cuda" else {}
    if not spared:
        return run_collectives(crew, tell)
    (node_rank, _), why = min(spared.items())
    told = f"not run: a GPU of {crew.nodes[node_rank].name} is taken: {why}"
    tell(f"level 1 was {told}")
    return CollectivesFacts(device=crew.device, not_run=told)


def is_wanted(level: int, settings: Settings) -> bool:
    """Tell whether a level has a check that --only leaves; else its time can be saved."""
    names = {check.name for check in CATALOGUE if check.level == level}
    return not settings.checks_only or not names.isdisjoint(settings.checks_only)
