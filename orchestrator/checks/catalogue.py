"""The list of all checks, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from orchestrator.checks import (
    across,
    agents,
    collectives,
    disks,
    folders,
    gpu_errors,
    gpu_fit,
    gpu_health,
    gpu_links,
    gpu_visible,
    hardware,
    links,
    load,
    machine,
    mesh,
    names,
    network,
    packages,
    paths,
    project,
    rates,
    rdma,
    reach,
    session,
    software,
    system,
    trackers,
    variables,
)
from orchestrator.checks.check import Check
from orchestrator.checks.seen import skip
from orchestrator.errors import ConfigError, UsageError
from orchestrator.facts import Facts, Survey
from orchestrator.settings import Settings
from orchestrator.values import Finding, Node

CATALOGUE: tuple[Check, ...] = (
    *across.MACHINES,
    *machine.PLACES,
    *software.CHECKS,
    *across.SOFTWARE,
    *packages.CHECKS,
    *agents.CHECKS,
    *variables.CHECKS,
    *project.CHECKS,
    *paths.CHECKS,
    *trackers.CHECKS,
    *disks.CHECKS,
    *hardware.CHECKS,
    *across.HARDWARE,
    *gpu_fit.CHECKS,
    *gpu_visible.CHECKS,
    *gpu_health.CHECKS,
    *gpu_links.CHECKS,
    *gpu_errors.CHECKS,
    *rdma.CHECKS,
    *machine.CHECKS,
    *folders.CHECKS,
    *session.CHECKS,
    *system.CHECKS,
    *names.CHECKS,
    *network.CHECKS,
    *reach.CHECKS,
    *mesh.CHECKS,
    *collectives.CHECKS,
    *rates.CHECKS,
    *links.CHECKS,
    *load.CHECKS,
)
PROOF = frozenset(check.name for check in reach.CHECKS)
"""What a launch cannot do without, also with --no-check: torchrun would hang for minutes."""


def check_names_exist(names: Sequence[str], where: str, *, skipped: bool = False) -> None:
    """Refuse the name of a check that there is not, or that cannot be left out.

    Raises:
        ConfigError: it is unknown; the nearest one is named.
    """
    known = [check.name for check in CATALOGUE]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.4)
            meant = f", did you mean {near[0]}?" if near else ""
            raise ConfigError(f"there is no check {name}{meant}", where=where, remedy="aorta-launch check --list")
        if skipped and name in PROOF:
            raise ConfigError(
                f"{name} cannot be left out: the run takes its address and port from it",
                where=where,
                remedy=f"remove {name} there",
            )


def check_rules_fit(settings: Settings) -> None:
    """Refuse rules for checks, or thresholds of theirs, that there are not.

    Raises:
        ConfigError: one is unknown.
    """
    where = settings.origins.get("checks", "config")
    check_names_exist(tuple(settings.checks), where)
    for check in CATALOGUE:
        rule = settings.checks.get(check.name)
        if rule is not None and check.name in PROOF and (rule.skip or rule.severity == "warn"):
            check_names_exist([check.name], where, skipped=True)
        for name in rule.thresholds if rule else ():
            if name not in check.thresholds:
                its = ", ".join(("severity", "skip", "reason", *check.thresholds))
                raise ConfigError(
                    f"launch.checks: {check.name} has no {name}", where=where, remedy=f"{check.name} takes {its}"
                )


def refuse_unknown_checks(settings: Settings) -> None:
    """Refuse names of checks, and rules for them, that there are not.

    Raises:
        ConfigError: one is unknown, or cannot be left out.
    """
    check_names_exist(settings.checks_skip, settings.origins["checks_skip"], skipped=True)
    check_names_exist(settings.checks_only, settings.origins["checks_only"])
    check_rules_fit(settings)


def refuse_idle_checks(settings: Settings) -> None:
    """Refuse --only with names that would be ready without a look: of a higher level, left out, or none at all.

    Raises:
        UsageError: no check would run of one that was asked for.
    """
    where = settings.origins.get("checks_only", "default")
    if where != "default" and not settings.checks_only:
        raise UsageError("no check is named", where=where, remedy="name some, or leave it out")
    for check in CATALOGUE:
        if check.name not in settings.checks_only:
            continue
        if check.level > settings.check_level:
            what = f"{check.name} is a check of level {check.level}, and level {settings.check_level} is asked for"
            raise UsageError(what, where=where, remedy=f"add --level {check.level}")
        if check.name in settings.checks_skip:
            skipped = settings.origins.get("checks_skip", "")
            raise UsageError(f"{check.name} is left out by {skipped}", where=where, remedy="name it in one of the two")


def run_checks(
    nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings, level: int = 0
) -> list[Finding]:
    """Let every check up to a level judge every node; what the user left out is a finding too."""
    findings: list[Finding] = []
    for check in CATALOGUE:
        if check.level > level or (settings.checks_only and check.name not in settings.checks_only):
            continue
        if not settings.check and check.name not in PROOF:
            continue
        findings += _judge(check, nodes, facts, survey, settings)
    return findings


def _judge(
    check: Check, nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings
) -> list[Finding]:
    rule = settings.checks.get(check.name)
    if check.name in settings.checks_skip:
        return _left_out(check, facts, "left out by --skip or launch.checks_skip", "")
    if rule is not None and rule.skip:
        return _left_out(check, facts, "left out by launch.checks", rule.reason)
    findings = []
    for node_rank, seen in check.judge(nodes, facts, survey, settings):
        bad = seen.status in ("warn", "fail")
        changed = rule is not None and rule.severity is not None and bad
        findings.append(
            Finding(
                check=check.name,
                status=rule.severity if rule is not None and rule.severity is not None and bad else seen.status,
                node_rank=node_rank,
                detail=seen.detail,
                remedy=seen.remedy,
                why=check.why if bad else "",
                reason=rule.reason if rule is not None and (changed or rule.thresholds) else "",
            )
        )
    return findings


def _left_out(check: Check, facts: Sequence[Facts], detail: str, reason: str) -> list[Finding]:
    seen = skip(detail)
    return [
        Finding(check=check.name, status=seen.status, node_rank=fact.node_rank, detail=seen.detail, reason=reason)
        for fact in facts
    ]
