"""Notices that a node ran other code than the rest: then what its ranks fell out about has a simple reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from orchestrator.diagnosis.case import Case, Judgement
from orchestrator.diagnosis.live import Texts

FELL_OUT = frozenset({"MISMATCH", "HANG"})
"""Ranks that disagree: any file that differs can be the reason."""
BROKE = frozenset({"CODE", "CONFIG", "ENV", "DATA", "CKPT", "UNKNOWN"})
"""A rank that broke by itself: only a file can be the reason in which it broke."""
MISFITS = frozenset({"TypeError", "AttributeError", "ImportError", "NameError"})
"""What a caller and a callee of two versions raise."""
MOST_NAMED = 3


def find_odd_code(judgement: Judgement, case: Case, texts: Texts) -> Judgement:
    """Say so where a node's code differs from that of the others in a file that the ranks ran."""
    if judgement.family not in FELL_OUT | BROKE:
        return judgement
    trees = {node.node_rank: dict(texts.node_evidence(node.node_rank).get("code") or {}) for node in case.nodes}
    trees = {node_rank: tree for node_rank, tree in trees.items() if tree}
    odd = find_odd_node(trees)
    if odd is None:
        return judgement
    node_rank, files = odd
    names = ", ".join(files[:MOST_NAMED]) + (f" and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else "")
    name = next(node.name for node in case.nodes if node.node_rank == node_rank)
    if judgement.family in BROKE and not _broke_of(files, node_rank, judgement, case):
        return replace(judgement, reason=f"{judgement.reason}; {name} has other code than the rest: {names}")
    rank = judgement.rank if judgement.node_rank == node_rank else None
    return replace(
        judgement,
        family="DEPLOY",
        rule="other code",
        confidence="likely",
        cause=f"{name} runs other code than the rest: {names}",
        cause_id="rule.other_code",
        rank=rank,
        node_rank=node_rank,
        reason=f"its files differ, and the ranks fell out: {judgement.cause}",
        remedy="push the project (leave out --no-push), or bring that node's copy to the same state",
    )


def _broke_of(files: list[str], node_rank: int, judgement: Judgement, case: Case) -> bool:
    """Tell whether a rank of the odd node broke in a file that differs, or of names that do not fit together."""
    story = next((story for story in case.ranks if story.rank == judgement.rank), None)
    if story is None or story.node_rank != node_rank or story.failure is None:
        return False
    if story.failure.error.partition(":")[0] in MISFITS:
        return True
    places = [frame.partition(":")[0] for frame in story.failure.frames]
    return any(place == file or place.endswith(f"/{file}") for place in places for file in files)


def find_odd_node(trees: Mapping[int, Mapping[str, str]]) -> tuple[int, list[str]] | None:
    """Find the only node whose files differ from what most have, and the files; of two nodes the later one."""
    names = sorted({name for tree in trees.values() for name in tree})
    differing: dict[int, list[str]] = {}
    for name in names:
        seen = Counter(tree.get(name, "") for tree in trees.values())
        if len(seen) == 1:
            continue
        usual = max(seen, key=lambda state: (seen[state], state == trees[min(trees)].get(name, "")))
        for node_rank, tree in trees.items():
            if tree.get(name, "") != usual:
                differing.setdefault(node_rank, []).append(name)
    return next(iter(differing.items())) if len(differing) == 1 else None
