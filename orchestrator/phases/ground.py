"""What a run stands on: nodes that are connected, known and judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.light_dataclass import dataclass
from orchestrator.output.screen import parse_ranks
from orchestrator.phases.workdir import default_workdir
from orchestrator.plan.build import build_plan

if TYPE_CHECKING:
    from orchestrator.facts import Facts, Survey
    from orchestrator.phases.begin import Begun
    from orchestrator.phases.preflight import Proof
    from orchestrator.settings import Settings
    from orchestrator.transport import Link
    from orchestrator.values import EnvValue, Finding, Node, Plan


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The nodes as check left them; everything in node rank order."""

    settings: Settings
    nodes: Sequence[Node]
    links: list[Link]
    facts: Sequence[Facts]
    proof: Proof
    survey: Survey
    findings: Sequence[Finding]
    env: tuple[EnvValue, ...]
    begun: Begun | None = None
    """The push of a run, which goes on while the nodes are checked; its id is the run's."""


def expected_workdirs(ground: Ground) -> list[str]:
    """Say where the code will lie on each node, before it is there."""
    workdir = ground.settings.workdir or default_workdir(ground.settings.project)
    return [fact.project.workdir or _expand(workdir, fact.home) for fact in ground.facts]


def _expand(path: str, home: str) -> str:
    if path == "~" or path.startswith("~/"):
        return home + path[1:]
    return path if path.startswith("/") else f"{home}/{path}"


def plan_on(ground: Ground, run_id: str, attempt: int, workdirs: Sequence[str]) -> Plan:
    """Build the plan of one attempt on this ground.

    Raises:
        ConfigError: --ranks names ranks that this run does not have.
    """
    plan = build_plan(
        run_id=run_id,
        attempt=attempt,
        settings=ground.settings,
        nodes=ground.nodes,
        facts=ground.facts,
        master_addr=ground.proof.master_addr,
        master_port=ground.proof.master_port,
        places=ground.proof.places,
        env=ground.env,
        workdirs=workdirs,
    )
    parse_ranks(ground.settings.ranks, plan.world_size)
    return plan
