"""Checks of what starts the ranks: accelerate, and numbers of processes that have to be equal."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.pip import pip_line
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown
from orchestrator.errors import AortaError
from orchestrator.facts import Facts
from orchestrator.plan.agents import EQUAL_REMEDY, explain_unequal, find_unequal
from orchestrator.plan.ranks import VISIBLE_NAMES, count_processes
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]


def compare_accelerate(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Accelerate is installed for the run's interpreter, where it is to start the ranks."""
    if settings.agent != "accelerate":
        return [skip(f"the agent is {settings.agent}") for _ in nodes]
    versions = [(fact.project.packages or {}).get("accelerate") for fact in facts]
    usual = next((version for version in versions if version), "")
    return [
        _judge_accelerate(node, fact, version, usual)
        for node, fact, version in zip(nodes, facts, versions, strict=True)
    ]


def _judge_accelerate(node: Node, fact: Facts, version: str | None, usual: str) -> Seen:
    if not fact.python:
        return skip("no interpreter")
    if fact.project.packages is None:
        return unknown(fact.why_unknown("python") or "the interpreter did not say")
    if version:
        return ok(f"accelerate {version}")
    pin = f"accelerate=={usual}" if usual else "accelerate"
    return fail(f"no accelerate in {fact.python}", f"{pip_line(node, fact, [pin])}; or --agent torchrun")


def compare_processes(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Every node starts as many processes as the others, where that is asked for or cannot be otherwise."""
    if not settings.equal_nodes and settings.agent != "accelerate":
        return [skip("launch.equal_nodes is false") for _ in nodes]
    if any(name in fact.project.given for fact in facts for name in VISIBLE_NAMES):
        return [unknown("the run's own environment says which GPUs are visible; the launch counts them") for _ in nodes]
    try:
        counts = [count_processes(node, fact, settings.nproc_per_node) for node, fact in zip(nodes, facts, strict=True)]
    except AortaError as error:
        return [unknown(error.what) for _ in nodes]
    unequal = find_unequal(nodes, counts, settings)
    if not unequal:
        return [ok(f"{counts[0]} on every node") for _ in nodes]
    return [
        fail(f"would start {number}, and {explain_unequal(settings)}: {unequal}", EQUAL_REMEDY) for number in counts
    ]


CHECKS = (
    Check(
        name="accelerate",
        looks_at="accelerate in the run's interpreter, by its metadata, with launch.agent: accelerate",
        why="the agent would not start",
        fails="it is not installed",
        across=compare_accelerate,
    ),
    Check(
        name="processes-equal",
        looks_at="the numbers of processes, with launch.equal_nodes or launch.agent: accelerate",
        why="accelerate divides its processes evenly; a script that shards inside nodes needs them alike",
        fails="the nodes would start unequal numbers",
        across=compare_processes,
    ),
)
