"""The node list: one node a line, in the order of node ranks; the first is the head."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from difflib import get_close_matches
from ipaddress import ip_address
from typing import TYPE_CHECKING

from orchestrator.errors import NodeListError, UsageError
from orchestrator.nodeline import parse_line
from orchestrator.noderanges import expand_range
from orchestrator.textfiles import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.values import Node

EXAMPLE = "node_ip_list.txt.example"


def read_node_list(path: Path) -> tuple[Node, ...]:
    """Read a node list.

    Raises:
        NodeListError: not there, not readable, empty, or a line that is not a node.
    """
    remedy = f"copy {EXAMPLE} to {path} and write your nodes in it, or name another list with --nodes FILE"
    return parse_node_list(read_text(path, NodeListError, "node list", remedy), str(path))


def parse_node_list(text: str, where: str) -> tuple[Node, ...]:
    """Parse the text of a node list.

    Raises:
        NodeListError: no node in it, a line that is not a node, or a node twice.
    """
    nodes: list[Node] = []
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff")), start=1):
        nodes.extend(parse_line(line, f"{where}:{number}"))
    if not nodes:
        raise NodeListError("no node in the list", where, f"write one node a line, as {EXAMPLE} shows")
    _refuse_twins(nodes)
    return _name_apart(nodes)


def select_nodes(nodes: Sequence[Node], include: Sequence[str], exclude: Sequence[str]) -> tuple[Node, ...]:
    """Keep the included nodes without the excluded ones, in list order; nothing included means all.

    Raises:
        UsageError: a name that is not in the list, or no node left.
    """
    kept = _find_places(nodes, include, "--include") if include else set(range(len(nodes)))
    kept -= _find_places(nodes, exclude, "--exclude")
    if not kept:
        raise UsageError(
            f"none of the {len(nodes)} nodes of the list is left", "--include/--exclude", "leave at least one node in"
        )
    return tuple(nodes[place] for place in sorted(kept))


def find_nodes(nodes: Sequence[Node], items: Sequence[str], flag: str) -> frozenset[int]:
    """Find the places of nodes by names, ranges and node ranks.

    Raises:
        UsageError: a name that is not in the list.
    """
    return frozenset(_find_places(nodes, items, flag))


def _host_key(host: str) -> str:
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower().rstrip(".")


def _refuse_twins(nodes: Sequence[Node]) -> None:
    first: dict[tuple[str, int], Node] = {}
    for node in nodes:
        key = (_host_key(node.host), node.port or 22)
        twin = first.setdefault(key, node)
        if twin is node:
            continue
        line = twin.where.rpartition(":")[2]
        place = "twice in this line" if twin.where == node.where else f"here and in line {line}"
        raise NodeListError(f"{node.host} stands {place}", node.where, "keep one; slots=N gives a node more processes")


def _name_apart(nodes: Sequence[Node]) -> tuple[Node, ...]:
    hosts = [_host_key(node.host) for node in nodes]
    total = Counter(hosts)
    named = []
    for node, host in zip(nodes, hosts, strict=True):
        if total[host] == 1:
            named.append(node)
            continue
        shown = f"[{node.host}]" if ":" in node.host else node.host
        named.append(replace(node, name=f"{shown}:{node.port or 22}"))
    return tuple(named)


def _find_places(nodes: Sequence[Node], items: Sequence[str], flag: str) -> set[int]:
    places: set[int] = set()
    for item in items:
        by_name = _find_named(nodes, item)
        places |= by_name or _find_ranked(nodes, item, flag) or _find_range(nodes, item, flag)
    return places


def _find_named(nodes: Sequence[Node], name: str) -> set[int]:
    exact = {place for place, node in enumerate(nodes) if node.name == name}
    return exact or {place for place, node in enumerate(nodes) if node.host == name}


def _find_ranked(nodes: Sequence[Node], item: str, flag: str) -> set[int]:
    span = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", item)
    if span is None:
        return set()
    first, last = int(span[1]), int(span[2] or span[1])
    if not first <= last < len(nodes):
        raise UsageError(f"no node rank {item}", flag, f"the list has node ranks 0 to {len(nodes) - 1}")
    return set(range(first, last + 1))


def _find_range(nodes: Sequence[Node], item: str, flag: str) -> set[int]:
    try:
        names = expand_range(item)
    except ValueError as error:
        raise UsageError(str(error), flag, "write names, ranges like node[1-4], or node ranks like 0-3") from None
    places: set[int] = set()
    for name in names:
        found = _find_named(nodes, name)
        if not found:
            near = get_close_matches(name, [node.name for node in nodes], n=1, cutoff=0.5)
            guess = f", did you mean {near[0]}?" if near else ""
            raise UsageError(f"no node {name} in the list{guess}", flag, "name nodes as the node list writes them")
        places |= found
    return places
