"""Checks of the paths that a config requires on every node."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.facts import Facts
from orchestrator.facts.project import PathState
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]


def compare_paths(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Every path of launch.require_paths is there, can be read, and is the same thing everywhere."""
    seen: list[Seen] = []
    for node, fact in zip(nodes, facts, strict=True):
        if not settings.require_paths and not fact.project.paths:
            seen.append(skip("launch.require_paths names none"))
        elif fact.project.paths is None:
            seen.append(unknown(fact.why_unknown("project.paths") or "the node did not say"))
        else:
            found = [_judge_path(node, state, nodes, facts) for state in fact.project.paths]
            worst = next((one for status in ("fail", "unknown", "warn") for one in found if one.status == status), None)
            number = len(fact.project.paths)
            seen.append(worst or ok(f"{number} path{'s' if number != 1 else ''} there"))
    return seen


def _judge_path(node: Node, state: PathState, nodes: Nodes, facts: AllFacts) -> Seen:
    others = [(there, _state_of(fact, state.path)) for there, fact in zip(nodes, facts, strict=True)]
    peers = [(there, other) for there, other in others if other is not None and other.readable]
    if state.kind == "unknown":
        return unknown(f"{state.place}: {state.trouble}")
    if state.kind == "absent" and not peers:
        return fail(f"no {state.place}", "no node has it: correct launch.require_paths")
    if state.kind == "absent":
        return fail(f"no {state.place}, {peers[0][0].name} has it", _copy(*peers[0], node, state))
    if not state.readable:
        mode = on_node(node, f"sudo chmod -R u+rX,go+rX {shlex.quote(state.place)}", terminal=True)
        return fail(f"{state.place} cannot be read", mode)
    return _judge_equal(node, state, peers)


def _judge_equal(node: Node, state: PathState, peers: Sequence[tuple[Node, PathState]]) -> Seen:
    usual = Counter(other.kind for _, other in peers).most_common(1)[0][0]
    if state.kind != usual:
        return warn(f"{state.place} is a {state.kind}, elsewhere a {usual}", _look(node, state))
    if state.entries == 0 and any(other.entries for _, other in peers):
        return warn(f"{state.place} is empty, elsewhere it is not", _mount(node, state))
    sizes = Counter(other.size for _, other in peers if other.kind == "file")
    if state.kind == "file" and state.size != sizes.most_common(1)[0][0]:
        peer = next(pair for pair in peers if pair[1].size == sizes.most_common(1)[0][0])
        return warn(
            f"{state.place} has {state.size} bytes, {peer[1].size} on {peer[0].name}", _copy(*peer, node, state)
        )
    return ok(state.place)


def _state_of(facts: Facts, path: str) -> PathState | None:
    return next((state for state in facts.project.paths or () if state.path == path), None)


def _copy(source: Node, there: PathState, node: Node, here: PathState) -> str:
    """Build the line that copies a path from one node to another through the launch host."""
    folder, _, name = there.place.rpartition("/")
    target = here.place.rpartition("/")[0] or "/"
    pack = f"tar -C {shlex.quote(folder or '/')} -cf - {shlex.quote(name)}"
    unpack = f"mkdir -p {shlex.quote(target)} && tar -C {shlex.quote(target)} -xf -"
    return f"{on_node(source, pack)} | {on_node(node, unpack)}"


def _look(node: Node, state: PathState) -> str:
    return on_node(node, f"ls -ld {shlex.quote(state.place)}")


def _mount(node: Node, state: PathState) -> str:
    return on_node(node, f"sudo mount {shlex.quote(state.place)}", terminal=True)


CHECKS = (
    Check(
        name="require-paths",
        looks_at="the paths of launch.require_paths",
        why="the ranks of one node would not find their data",
        fails="one is not there, or cannot be read",
        warns="it is empty, of another kind or of another size than on most nodes",
        across=compare_paths,
    ),
)
