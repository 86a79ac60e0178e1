"""Checks of the installed packages, and of the system below them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from orchestrator.checks.across import compare
from orchestrator.checks.check import Check
from orchestrator.checks.pip import pip_line
from orchestrator.checks.seen import Seen, ok, skip, unknown, warn
from orchestrator.facts import Facts
from orchestrator.facts.project import TorchPlace
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]
NAMED = 4
JUDGED_ELSEWHERE = frozenset({"torch", "pip", "setuptools", "wheel", "uv", "distribute"})
"""Torch has a check of its own; the others install and do not run."""


def compare_packages(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Every node has the packages of most nodes, in the same versions."""
    del settings
    tables = [_packages(fact) for fact in facts]
    known = Counter(frozenset(table.items()) for table in tables if table is not None)
    usual = dict(known.most_common(1)[0][0]) if known else {}
    model = next((rank for rank, table in enumerate(tables) if table == usual), 0)
    alike = sum(table == usual for table in tables)
    seen: list[Seen] = []
    for node, fact, table in zip(nodes, facts, tables, strict=True):
        if not fact.python:
            seen.append(skip("no interpreter"))
        elif table is None:
            seen.append(unknown(fact.why_unknown("python") or "the interpreter did not say"))
        else:
            there = nodes[model].name if alike == 1 else f"{alike} of {len(nodes)} nodes"
            seen.append(_judge_packages(node, fact, table, usual, there))
    return seen


def _packages(facts: Facts) -> Mapping[str, str] | None:
    if facts.project.packages is None:
        return None
    return {
        name: version
        for name, version in facts.project.packages.items()
        if name not in JUDGED_ELSEWHERE and not name.startswith("nvidia-nccl-")
    }


def _judge_packages(node: Node, facts: Facts, table: Mapping[str, str], usual: Mapping[str, str], there: str) -> Seen:
    kind = {"conda": "a conda environment", "venv": "a virtual environment", "system": "the system's Python"}
    held = f"{len(table)} packages in {kind.get(facts.project.environment, 'the environment')}"
    missing = sorted(name for name in usual if name not in table)
    other = sorted(name for name in usual if name in table and table[name] != usual[name])
    more = sorted(name for name in table if name not in usual)
    told = [f"{name} {table[name]} -> {usual[name]}" for name in other]
    told += [f"no {name} {usual[name]}" for name in missing]
    if told:
        pins = [f"{name}=={usual[name]}" for name in sorted((*other, *missing))]
        return warn(f"differ from {there}: {shorten(told)}", pip_line(node, facts, pins))
    # A package more than the others have does no harm to a run that works there.
    return ok(f"{held}, more than {there}: {shorten(more)}" if more else held)


def shorten(texts: Sequence[str], limit: int = NAMED) -> str:
    """Name the first ones and count the rest."""
    rest = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + rest


def check_torch_single(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The torch that is loaded is the environment's own, and its metadata fits it."""
    del settings
    places = facts.project.torch_places
    if facts.torch_version is None:
        return skip("no torch")
    if not places:
        return unknown("the interpreter did not say where it looks")
    return _judge_torch(node, facts, places[0], places[1:])


def _judge_torch(node: Node, facts: Facts, first: TorchPlace, others: Sequence[TorchPlace]) -> Seen:
    other_release = [version for version in first.metadata if _release(version) != _release(first.version)]
    if first.version and other_release:
        repair = pip_line(node, facts, [f"torch=={first.version}"])
        return warn(
            f"torch in {first.folder} is {first.version}, but its metadata says {' and '.join(other_release)}",
            repair.replace(" install ", " install --force-reinstall --no-deps ", 1),
        )
    if not others:
        return ok(first.folder)
    hidden = shorten([f"{other.version or '/'.join(other.metadata)} in {other.folder}" for other in others])
    detail = f"torch {first.version} in {first.folder} hides {hidden}"
    if first.own:
        # An environment laid over the system's packages is meant so.
        return ok(detail)
    if "/.local/" in first.folder:
        return warn(f"{detail} of the environment", "leave the user's own packages out: --env PYTHONNOUSERSITE=1")
    return warn(f"{detail} of the environment", "leave folders before it out: --env PYTHONPATH=")


def _release(version: str) -> str:
    return re.sub(r"\.post\d+$", "", version.partition("+")[0])


def compare_system(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Distribution and C library are the same everywhere; kernels may differ."""
    del settings

    def differ(rank: int, detail: str, usual: str) -> Seen:
        del usual
        return warn(detail, f"leave it out: --exclude {nodes[rank].name}; or run all nodes in one container image")

    seen = compare([_system(fact) for fact in facts], nodes, "system", differ)
    kernels = Counter(fact.kernel for fact in facts if fact.kernel)
    usual = kernels.most_common(1)[0][0] if kernels else ""
    for rank, fact in enumerate(facts):
        if seen[rank].status == "skip":
            seen[rank] = unknown("the node does not name its system")
        elif seen[rank].status == "ok" and fact.kernel:
            other = "" if fact.kernel == usual else f" (most have {usual})"
            seen[rank] = ok(f"{_system(fact)}, kernel {fact.kernel}{other}")
    return seen


def _system(facts: Facts) -> str | None:
    parts = [facts.project.distribution, f"glibc {facts.project.glibc}" if facts.project.glibc else ""]
    return ", ".join(part for part in parts if part) or None


CHECKS = (
    Check(
        name="packages-equal",
        looks_at="the packages of the run's interpreter, by their metadata",
        why="ranks of different packages compute different things, or one of them fails at an import",
        warns="a node lacks a package of most nodes, or has it in another version",
        across=compare_packages,
    ),
    Check(
        name="torch-single",
        looks_at="every folder in which the interpreter looks for torch",
        why="another torch is loaded than the one that was installed for this environment",
        warns="the environment's own torch is hidden by one from outside, or the metadata is of another version",
        each=check_torch_single,
    ),
    Check(
        name="kernel-equal",
        looks_at="distribution, C library and kernel",
        why="what was compiled on one node may not load on the other",
        warns="distribution or C library differ from most nodes; a kernel may differ",
        across=compare_system,
    ),
)
