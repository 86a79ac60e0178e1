"""Checks of what lies on shared disks and what on separate ones."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, ok, unknown, warn
from orchestrator.facts import Facts
from orchestrator.facts.project import Disk
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]


def compare_disks(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Tell for HOME and for the code's folder whether nodes share it."""
    del settings
    homes, codes = [fact.project.home_disk for fact in facts], [fact.project.code_disk for fact in facts]
    seen: list[Seen] = []
    for rank, fact in enumerate(facts):
        home, code = homes[rank], codes[rank]
        if home is None or code is None:
            seen.append(unknown(fact.why_unknown("project.disks") or "the node did not say"))
            continue
        if _stands_alone(rank, homes):
            others = next(disk for disk in homes if disk is not None and disk.key != home.key)
            what = " ".join(part for part in (others.kind, others.source) if part)
            remedy = on_node(nodes[rank], f"sudo mount {shlex.quote(others.mount)}", terminal=True)
            seen.append(warn(f"all other nodes share a HOME ({what}), this one has its own", remedy))
            continue
        told = f"HOME {_render(home, _sharing(rank, homes, nodes), len(nodes))}"
        if code.path != home.path:
            told += f"; code {_render(code, _sharing(rank, codes, nodes), len(nodes))}"
        seen.append(ok(told))
    return seen


def _stands_alone(rank: int, disks: Sequence[Disk | None]) -> bool:
    """Tell whether all others share one folder: then the mount is missing here."""
    others = [disk.key if disk is not None else "" for other, disk in enumerate(disks) if other != rank]
    own = disks[rank]
    return len(others) > 1 and len(set(others)) == 1 and bool(others[0]) and own is not None and own.key != others[0]


def _render(disk: Disk, sharing: Sequence[str], number: int) -> str:
    kind = " ".join(part for part in (disk.kind, disk.source) if part) or "of unknown kind"
    if len(sharing) == 1:
        return f"{kind}, of its own"
    return f"{kind}, shared by {'all nodes' if len(sharing) == number else ', '.join(sharing)}"


def _sharing(rank: int, disks: Sequence[Disk | None], nodes: Nodes) -> list[str]:
    own = disks[rank]
    return [
        node.name
        for other, (node, disk) in enumerate(zip(nodes, disks, strict=True))
        if other == rank or (own is not None and disk is not None and own.key and disk.key == own.key)
    ]


def compare_users(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Who shares a folder with another node is the same user there, by number."""
    del settings
    seen: list[Seen] = []
    for rank, fact in enumerate(facts):
        if fact.project.uid is None:
            seen.append(unknown(fact.why_unknown("project") or "the node did not say"))
            continue
        # Of two that differ the later one is told.
        odd = next((other for other in range(rank) if _clash(fact, facts[other])), None)
        name = fact.user or "uid"
        if odd is None:
            seen.append(ok(f"uid {fact.project.uid}"))
        else:
            seen.append(
                warn(
                    f"{name} is uid {fact.project.uid}, but {facts[odd].project.uid} on {nodes[odd].name}, and both share {_shared(fact, facts[odd])}",
                    f"log in as the user with uid {facts[odd].project.uid}: USER@{nodes[rank].host} in the node list",
                )
            )
    return seen


def _clash(one: Facts, other: Facts) -> bool:
    return other.project.uid is not None and one.project.uid != other.project.uid and bool(_shared(one, other))


def _shared(one: Facts, other: Facts) -> str:
    pairs = ((one.project.home_disk, other.project.home_disk), (one.project.code_disk, other.project.code_disk))
    return next((mine.path for mine, theirs in pairs if mine and theirs and mine.key and mine.key == theirs.key), "")


CHECKS = (
    Check(
        name="disks",
        looks_at="the file systems below HOME and the code, and which nodes share them",
        why="what is written once must not be written by all, and what is written on one node is not on the others",
        warns="all other nodes share HOME, and one has a HOME of its own",
        across=compare_disks,
    ),
    Check(
        name="user-equal",
        looks_at="the user's number on nodes that share HOME or the code's folder",
        why="the ranks of one node could not read what those of another have written",
        warns="nodes share a folder and have different user numbers",
        across=compare_users,
    ),
)
