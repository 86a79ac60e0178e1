"""Notices that a node ran other code than the rest: then what its ranks fell out about has a simple reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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


def find_odd_code(judgement: Judgement, case: Case, texts: Texts, script: Sequence[str] = ()) -> Judgement:
    """Say so where a node's code differs from that of the others in a file that the ranks are known to have run."""
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
    ran = {place for story in case.ranks if story.failure for place in map(file_of, story.failure.frames)} | {*script}
    known = any(is_file(place, file) for place in ran for file in files)
    if not known and not _misfits(node_rank, judgement, case):
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


def file_of(frame: str) -> str:
    """Give the file of a frame."""
    return frame.partition(":")[0]


def is_file(place: str, file: str) -> bool:
    """Tell whether a path on a node is that file of the project."""
    return place == file or place.endswith(f"/{file}")


def _misfits(node_rank: int, judgement: Judgement, case: Case) -> bool:
    """Tell whether a rank of the odd node broke of names that do not fit together."""
    story = next((story for story in case.ranks if story.rank == judgement.rank), None)
    here = story is not None and story.node_rank == node_rank and story.failure is not None
    return here and story is not None and story.failure is not None and _kind(story.failure.error) in MISFITS


def _kind(error: str) -> str:
    return error.partition(":")[0]


def find_odd_node(trees: Mapping[int, Mapping[str, str]]) -> tuple[int, list[str]] | None:
    """Find the only node whose files differ from what most have, and the files; of two nodes the later one."""
    # What a run writes itself (snapshots of its code, generated kernels) lies on one node alone.
    names = sorted(set.intersection(*(set(tree) for tree in trees.values()))) if trees else []
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
