"""What every rank is doing, equal stacks folded: for people, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from orchestrator.diagnosis.hang.stacks_node import NodeLook, RankLook, list_looks, list_stacks
from orchestrator.diagnosis.hang.words import WAITING, Group, fold_stacks, shorten_files
from orchestrator.output.wording import count, strip_controls

MOST_FRAMES = 8


def render_stacks(run_id: str, nodes: Sequence[NodeLook], *, every_frame: bool = False) -> Text:
    """Render one block a group, the largest first; then whom nothing is known of."""
    looks = {look.rank: look for look in list_looks(nodes)}
    lines = [Text(run_id, "bold")]
    for group in fold_stacks(shorten_files(list_stacks(nodes))):
        lines += [Text(), *_render_group(group, looks, nodes, every_frame=every_frame)]
    for node in nodes:
        if node.error:
            lines += [Text(), Text(f"node {node.node_rank} {node.node}: {strip_controls(node.error)}", "red")]
    for why, ranks in _fold_reasons(looks.values()).items():
        lines += [Text(), Text(f"{fold_ranks(ranks)}: no more than that: {strip_controls(why)}", "dim")]
    if len(lines) == 1:
        lines.append(Text("no rank runs"))
    return Text("\n").join(lines)


def _render_group(
    group: Group, looks: dict[int, RankLook], nodes: Sequence[NodeLook], *, every_frame: bool
) -> list[Text]:
    waits = group.telling.kind in WAITING
    doing = f"{'waits' if len(group.ranks) == 1 else 'wait'} in" if waits else "in"
    head = Text.assemble(
        (fold_ranks(group.ranks), "bold"),
        f"  {doing} ",
        (strip_controls(group.telling.phrase), "" if waits else "yellow"),
    )
    stack = group.stacks[0]
    if stack.state == "D" and stack.frames:
        head.append(f"  state {stack.state}" + (f", wchan {stack.wchan}" if stack.wchan else ""), "red")
    lines = [head]
    if len(group.ranks) == 1:
        lines.append(Text(f"    {place_of(looks[stack.rank], nodes)}", "dim"))
    frames = stack.frames if every_frame else stack.user_frames
    shown = frames if every_frame else frames[:MOST_FRAMES]
    lines += [Text(strip_controls(f"    {frame.place} in {frame.function}"), "dim") for frame in shown]
    if len(shown) < len(frames):
        lines.append(Text(f"    and {len(frames) - len(shown)} more", "dim"))
    return lines


def place_of(look: RankLook, nodes: Sequence[NodeLook]) -> str:
    """Say where a rank runs: "node 1 10.0.0.2, local rank 1, pid 4711"."""
    node = next((node for node in nodes if node.node_rank == look.node_rank), None)
    name = "" if node is None else f" {node.node}"
    if node is not None and node.address and node.address != node.node:
        name += f" {node.address}"
    parts = [f"node {look.node_rank}{name}"]
    parts += [f"local rank {look.local_rank}"] if look.local_rank is not None else []
    parts += [f"pid {look.pid}"] if look.pid is not None else []
    return ", ".join(parts)


def fold_ranks(ranks: Sequence[int]) -> str:
    """Write some ranks in short: "ranks 0-3, 5"."""
    parts: list[str] = []
    start = previous = None
    for rank in [*sorted(ranks), None]:
        if start is not None and (rank is None or rank != (previous or 0) + 1):
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = None
        if start is None:
            start = rank
        previous = rank
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(parts)}"


def _fold_reasons(looks: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for look in looks:
        if look.why and (look.stack is None or not look.stack.frames):
            found.setdefault(look.why, []).append(look.rank)
    return found


def stacks_document(run_id: str, nodes: Sequence[NodeLook]) -> dict[str, Any]:
    """Build the JSON document."""
    names = {node.node_rank: node.node for node in nodes}
    stacks = {stack.rank: stack for stack in shorten_files(list_stacks(nodes))}
    groups = fold_stacks(list(stacks.values()))
    return {
        "schema": 1,
        "run_id": run_id,
        "groups": [
            {
                "ranks": list(group.ranks),
                "doing": group.telling.word,
                "kind": group.telling.kind,
                "where": group.telling.place,
                "text": group.telling.phrase,
            }
            for group in groups
        ],
        "ranks": [
            {
                "rank": look.rank,
                "node_rank": look.node_rank,
                "node": names[look.node_rank],
                "local_rank": look.local_rank,
                "pid": look.pid,
                "state": stacks[look.rank].state if look.rank in stacks else "",
                "wchan": stacks[look.rank].wchan if look.rank in stacks else "",
                "how": look.how,
                "why": look.why,
                "frames": [
                    {"function": frame.function, "file": frame.file, "line": frame.line}
                    for frame in (stacks[look.rank].frames if look.rank in stacks else ())
                ],
            }
            for look in list_looks(nodes)
        ],
        "unasked": [{"node": node.node, "error": node.error} for node in nodes if node.error],
    }


def render_size(nodes: Sequence[NodeLook]) -> str:
    """Say how much was seen: "8 ranks on 4 nodes"."""
    return f"{count(len(list_looks(nodes)), 'rank')} on {count(sum(not node.error for node in nodes), 'node')}"
