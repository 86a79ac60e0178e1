"""What one node tells of its ranks' stacks, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.diagnosis.hang.stacks import Stack, clean_wchan, parse_stack
from orchestrator.light_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class RankLook:
    """What was seen of one rank."""

    rank: int
    node_rank: int
    local_rank: int | None = None
    pid: int | None = None
    stack: Stack | None = None
    text: str = ""
    """As the tool on the node wrote it, places in the project as the project knows them."""
    how: str = ""
    """What took it: py-spy, signal (faulthandler), proc."""
    why: str = ""
    """Why it is not more."""


@dataclass(frozen=True, kw_only=True)
class NodeLook:
    """What was seen of one node."""

    node_rank: int
    node: str
    address: str = ""
    ranks: tuple[RankLook, ...] = ()
    error: str = ""
    """Why it could not be asked."""


def build_node_look(
    answer: Mapping[str, Any], *, node_rank: int, node: str, address: str = "", workdir: str = ""
) -> NodeLook:
    """Read a node's answer; a rank that it tells nonsense of is left out."""
    ranks = [
        _build_rank_look(raw, node_rank, workdir)
        for raw in answer.get("ranks") or ()
        if isinstance(raw, Mapping) and isinstance(raw.get("rank"), int)
    ]
    return NodeLook(
        node_rank=node_rank, node=node, address=address, ranks=tuple(ranks), error=str(answer.get("error") or "")
    )


def _build_rank_look(raw: Mapping[str, Any], node_rank: int, workdir: str) -> RankLook:
    rank, text = int(raw["rank"]), str(raw.get("text") or "")
    if workdir:
        text = text.replace(f"{workdir.rstrip('/')}/", "")
    state, wchan = str(raw.get("state") or "")[:1], clean_wchan(str(raw.get("wchan") or "").partition(".")[0])
    stack = parse_stack(text, rank, node_rank)
    if stack is not None:
        stack = replace(stack, state=state or stack.state, wchan=wchan or stack.wchan)
    elif state or wchan:
        stack = Stack(rank=rank, node_rank=node_rank, state=state, wchan=wchan)
    local, pid = raw.get("local_rank"), raw.get("pid")
    return RankLook(
        rank=rank,
        node_rank=node_rank,
        local_rank=local if isinstance(local, int) else None,
        pid=pid if isinstance(pid, int) else None,
        stack=stack,
        text=text,
        how=str(raw.get("how") or ""),
        why=str(raw.get("why") or ""),
    )


def list_looks(nodes: Iterable[NodeLook]) -> list[RankLook]:
    """List what was seen of every rank, by rank."""
    return sorted((look for node in nodes for look in node.ranks), key=lambda look: look.rank)


def list_stacks(nodes: Iterable[NodeLook]) -> list[Stack]:
    """List the stacks that there are, by rank."""
    return [look.stack for look in list_looks(nodes) if look.stack is not None]


def render_look(look: RankLook, node: str) -> str:
    """Render what is kept of one rank in a file: what /proc says, then the stack as the tool wrote it."""
    head = [f"rank {look.rank} · node {look.node_rank} {node} · local rank {look.local_rank} · pid {look.pid}"]
    if look.stack is not None and look.stack.state:
        head.append(f"State: {look.stack.state}")
    if look.stack is not None and look.stack.wchan:
        head.append(f"wchan={look.stack.wchan}")
    if look.why:
        head.append(f"not more, because: {look.why}")
    return "\n".join([*head, "", look.text.rstrip("\n"), ""])
