"""Brings the project's code to every node and proves by hash that it is the same there."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import AortaError, PushError
from orchestrator.phases.places import (
    check_all,
    check_equal,
    check_place,
    check_room,
    list_earlier,
    list_extra,
    list_removable,
)
from orchestrator.phases.rsync import push_paths
from orchestrator.phases.tree import Tree, read_tree
from orchestrator.phases.workdir import (
    Question,
    Workdir,
    find_workdir,
    inspect_workdir,
    prepare_workdir,
    read_neighbours,
)
from orchestrator.plan.manifest import MIB, check_size, compare_manifests, render_paths
from orchestrator.plan.paths import file_name
from orchestrator.transport import Link
from orchestrator.transport.fanout import fan_out

if TYPE_CHECKING:
    from orchestrator.facts import Facts
    from orchestrator.settings import Settings

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """Where the code lies on the nodes, and what it took to bring it there."""

    workdirs: tuple[str, ...]
    """Absolute, one a node."""
    tree_hash: str = ""
    """Empty when nothing was compared (--no-push)."""
    files: int = 0
    total_bytes: int = 0
    folders_pushed: int = 0
    """Copies that were made: nodes that share a folder count once, unchanged ones not at all."""
    warnings: tuple[str, ...] = ()


def default_workdir(project: Path) -> str:
    """Name the folder on a node for a project."""
    return f"~/.aorta/code/{file_name(project.resolve().name)}"


def push_code(
    links: Sequence[Link], facts: Sequence[Facts], settings: Settings, run_id: str, tell: Tell | None = None
) -> Pushed:
    """Make the code folder of every node equal to the project; an equal one costs one round trip and no copy.

    Raises:
        PushError: a folder is not ours, the copy failed, or a tree differs afterwards.
        LinkLostError: a node does not answer.
    """
    del facts  # the nodes themselves say where their folders are
    tell = tell or (lambda _text: None)
    workdir = settings.workdir or default_workdir(settings.project)
    if not settings.push:
        return _find_code(links, workdir, settings)
    tree = read_tree(settings)
    for may_repeat in (True, False):
        try:
            return _push_tree(links, tree, workdir, settings, run_id, tell)
        except AortaError:
            again = read_tree(settings)
            if again.manifest.tree_hash == tree.manifest.tree_hash:
                raise
            if not may_repeat:
                raise PushError(
                    what=f"files change while they are pushed: {_changes(tree, again)}",
                    where=str(tree.root),
                    remedy="wait until nothing writes into the project, or list these files in .aortaignore",
                ) from None
            tree = again
    raise AssertionError  # the second turn returns or raises


def _changes(old: Tree, new: Tree) -> str:
    return render_paths(compare_manifests(old.manifest, new.manifest))


def _find_code(links: Sequence[Link], workdir: str, settings: Settings) -> Pushed:
    found = fan_out(lambda link: find_workdir(link, workdir), links, settings.fanout)
    without = [link.node.name for link, (_, exists) in zip(links, found, strict=True) if not exists]
    if without:
        raise PushError(
            what=f"the folder {workdir} is not there",
            where=", ".join(without),
            remedy="leave --no-push out, or name the folder with --workdir",
        )
    return Pushed(workdirs=tuple(path for path, _ in found))


def _push_tree(links: Sequence[Link], tree: Tree, workdir: str, settings: Settings, run_id: str, tell: Tell) -> Pushed:
    warnings = _tree_warnings(tree, settings)
    for warning in warnings:
        tell(warning)
    with own_nonce(tree.root) as nonce:
        question = Question(workdir=workdir, project=str(tree.root), nonce=nonce, manifest=tree.manifest)
        found = fan_out(lambda link: inspect_workdir(link, question), links, settings.fanout)
        check_all(check_place, found, tree)
        earlier = list_earlier(found, tree)
        behind = [index for index, place in enumerate(found) if _needs_push(place, tree)]
        folders = 0
        if behind:
            work = _Push(links, tree, question, found, settings, run_id, secrets.token_hex(6))
            folders = work.run(behind, tell)
            done = fan_out(lambda index: inspect_workdir(links[index], question, work.token), behind, settings.fanout)
            found = [dict(zip(behind, done, strict=True)).get(index, place) for index, place in enumerate(found)]
    check_all(check_equal, found, tree)
    return Pushed(
        workdirs=tuple(place.path for place in found),
        tree_hash=tree.manifest.tree_hash,
        files=tree.manifest.files,
        total_bytes=tree.manifest.total_bytes,
        folders_pushed=folders,
        warnings=(*warnings, *earlier, *list_extra(found, tree)),
    )


def _needs_push(place: Workdir, tree: Tree) -> bool:
    if place.owner == "launch-host":
        return False
    return place.tree_hash != tree.manifest.tree_hash or place.owner != "ours" or bool(list_removable(place, tree))


@contextmanager
def own_nonce(root: Path) -> Iterator[str]:
    """Leave a file in the project for a moment: a node that sees it has the launch host's own tree before it."""
    name = f".aorta-nonce-{secrets.token_hex(8)}"
    file = root / name
    before = root.stat().st_mtime_ns
    try:
        file.touch(exist_ok=False)
    except OSError:
        yield name  # a read-only project: no node can be made to write into it either
        return
    ours = root.stat().st_mtime_ns
    try:
        yield name
    finally:
        with suppress(OSError):
            untouched = root.stat().st_mtime_ns == ours
            file.unlink()
            if untouched:
                os.utime(root, ns=(root.stat().st_atime_ns, before))


def _tree_warnings(tree: Tree, settings: Settings) -> list[str]:
    size = check_size(tree.manifest, settings.push_warn_mib, settings.push_warn_files)
    warnings = [size] if size else []
    if tree.skipped:
        warnings.append(f"sockets, pipes and devices are not pushed: {render_paths(tree.skipped)}")
    return warnings


@dataclass(frozen=True)
class _Push:
    links: Sequence[Link]
    tree: Tree
    question: Question
    found: Sequence[Workdir]
    settings: Settings
    run_id: str
    token: str

    def run(self, behind: Sequence[int], tell: Tell) -> int:
        """Prepare the folders, find out which of them are one, copy once for each; give the number of copies."""
        fan_out(self._prepare, behind, self.settings.fanout)
        groups = self._groups(behind)
        jobs = {first: self._changed(first) for first in groups}
        jobs = {first: paths for first, paths in jobs.items() if paths}
        if jobs:
            size = self.tree.manifest.total_bytes / MIB
            tell(f"pushing {self.tree.manifest.files} files, {size:.1f} MiB, to {len(jobs)} folders")
        root = self.tree.root
        fan_out(
            lambda first: push_paths(self.links[first], root, self.found[first].path, jobs[first]),
            list(jobs),
            self.settings.fanout,
        )
        return len(jobs)

    def _prepare(self, index: int) -> None:
        marker = {
            "schema": 1,
            "project": str(self.tree.root),
            "launch_host": socket.gethostname(),
            "run_id": self.run_id,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        remove = list_removable(self.found[index], self.tree)
        blocked, free_bytes = prepare_workdir(
            self.links[index], self.question, token=self.token, index=index, remove=remove, marker=marker
        )
        check_room(self.found[index], self.tree, blocked, free_bytes)

    def _groups(self, behind: Sequence[int]) -> list[int]:
        if len(behind) == 1:
            return list(behind)
        seen = fan_out(
            lambda index: read_neighbours(self.links[index], self.question, self.token), behind, self.settings.fanout
        )
        # The first node of the list that sees a folder fills it.
        return sorted({min((*neighbours, index)) for index, neighbours in zip(behind, seen, strict=True)})

    def _changed(self, index: int) -> list[str]:
        place = self.found[index]
        if place.owner != "ours":
            return sorted(self.tree.manifest.paths)
        return sorted({*place.missing, *place.different})
