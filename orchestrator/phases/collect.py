"""Brings the outputs of every node into the experiment directory, whatever became of the run."""

from __future__ import annotations

import filecmp
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.errors import AortaError, CollectError
from orchestrator.light_dataclass import dataclass
from orchestrator.phases.rsync import pull_folder
from orchestrator.plan.paths import ExperimentPaths, NodePaths
from orchestrator.transport import Link
from orchestrator.transport.fanout import try_all
from orchestrator.values import NodePlan, Plan

if TYPE_CHECKING:
    from orchestrator.settings import Settings

OUTPUTS = NodePaths(PurePosixPath("/")).outputs.name
HUGE_GIB = 10.0
GIB = 1 << 30
PULLED = ".aorta-collect-"


@dataclass(frozen=True)
class Came:
    """One file or link that came from one node."""

    node_rank: int
    path: str
    """Relative to the outputs of the node."""
    file: Path


@dataclass(frozen=True)
class Collected:
    """What came of collecting the outputs of a run."""

    errors: tuple[AortaError, ...] = ()
    """What the user has to hear: one error for each node whose outputs did not come, one when they are huge."""
    missing: tuple[str, ...] = ()
    """The nodes whose outputs are not here, or not all of them."""


def collect_outputs(links: Sequence[Link | None], plan: Plan, paths: ExperimentPaths, settings: Settings) -> Collected:
    """Copy every node's outputs here and merge them; what came from some nodes stays when others fail."""
    pairs = list(zip(links, plan.nodes, strict=True))
    try:
        paths.outputs.mkdir(parents=True, exist_ok=True)
        # Only the controller collects: what is there is of one that was killed while it did.
        for stale in paths.root.glob(f"{PULLED}*"):
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=PULLED, dir=paths.root) as folder:
            _, errors = try_all(lambda pair: _pull(pair[0], pair[1], Path(folder)), pairs, settings.fanout)
            came = [file for _, node in pairs for file in list_came(Path(folder), node.node_rank)]
            total_gib = sum(item.file.lstat().st_size for item in came) / GIB
            merge_outputs(came, paths.outputs)
    except OSError as error:
        where = os.fsdecode(error.filename or paths.outputs)
        full = CollectError(what=f"outputs cannot be kept: {error.strerror}", where=where, remedy="free space here")
        return Collected((full,), tuple(node.node.name for node in plan.nodes))
    told = [errors[place] for place in sorted(errors)]
    if total_gib > HUGE_GIB:
        told.append(
            CollectError(
                what=f"the outputs of this run are {total_gib:.1f} GiB",
                where=str(paths.outputs),
                remedy="write what need not come back somewhere else than $AORTA_OUTPUT_DIR",
            )
        )
    return Collected(tuple(told), tuple(plan.nodes[place].node.name for place in sorted(errors)))


def _pull(link: Link | None, node: NodePlan, folder: Path) -> None:
    if link is None:
        raise CollectError(
            what="its outputs did not come: it is not reached",
            where=node.node.name,
            remedy=f"they lie in {node.run_folder}/{OUTPUTS} on the node",
        )
    here = folder / str(node.node_rank)
    here.mkdir()
    try:
        pull_folder(link, node.run_folder, OUTPUTS, here)
    except AortaError as error:
        raise CollectError(
            what=f"its outputs did not come, or not all: {error.what}",
            where=link.node.name,
            remedy=f"they lie in {node.run_folder}/{OUTPUTS} on the node",
        ) from error


def list_came(folder: Path, node_rank: int) -> list[Came]:
    """List what came from one node, in the order of its paths."""
    top = folder / str(node_rank) / OUTPUTS
    came = []
    for place, folders, files in os.walk(top):
        # os.walk counts a link to a folder among the folders, without following it.
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in (*files, *links):
            file = Path(place) / name
            came.append(Came(node_rank, str(file.relative_to(top)), file))
    return sorted(came, key=lambda item: item.path)


def merge_outputs(came: Sequence[Came], outputs: Path) -> None:
    """Move everything to its relative path; where nodes disagree, each keeps its own below node_<rank>/."""
    by_path: dict[str, list[Came]] = {}
    for item in came:
        by_path.setdefault(item.path, []).append(item)
    # Where one node has a file and another a folder of that name, both sides are apart.
    split = {path for path in by_path for upper in _upper(path) if upper in by_path}
    split |= {upper for path in by_path for upper in _upper(path) if upper in by_path}
    for path, items in sorted(by_path.items()):
        if path not in split and all(_same(items[0].file, other.file) for other in items[1:]):
            _move(items[0].file, outputs / path)
        else:
            _unmerge(outputs / path, items)
            for item in items:
                _move(item.file, outputs / f"node_{item.node_rank}" / path)


def _unmerge(file: Path, items: Sequence[Came]) -> None:
    """Remove what an earlier try put where all nodes agree, when a node was still missing that disagrees."""
    if (file.is_symlink() or file.is_file()) and any(_same(item.file, file) for item in items):
        file.unlink()


def _upper(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    return filecmp.cmp(one, other, shallow=False)


def _move(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    file.replace(to)
