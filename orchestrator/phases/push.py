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
from orchestrator.phases.turns import open_keepers, wait_turn
from orchestrator.phases.workdir import Keeper, Question, Workdir, folder_words
from orchestrator.plan.manifest import MIB, check_size, compare_manifests, render_paths
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


def push_code(
    links: Sequence[Link], facts: Sequence[Facts], settings: Settings, run_id: str, tell: Tell | None = None
) -> Pushed:
    """Make the code folder of every node equal to the project; an equal one costs one round trip and no copy.

    Raises:
        PushError: a folder is not ours, a live run uses it, the copy failed, or a tree differs afterwards.
        LinkLostError: a node does not answer.
    """
    del facts  # the nodes themselves say where their folders are
    tell = tell or (lambda _text: None)
    if not settings.push:
        return _find_code(links, settings, run_id, tell)
    tree = read_tree(settings)
    for may_repeat in (True, False):
        try:
            return _push_tree(links, tree, settings, run_id, tell)
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


def _find_code(links: Sequence[Link], settings: Settings, run_id: str, tell: Tell) -> Pushed:
    words = folder_words(settings)
    with open_keepers(links, Question(words=words, run_id=run_id), settings.fanout) as keepers:
        found = wait_turn(keepers, lambda _found: [], settings.fanout, tell).found
        without = [place.node for place in found if not place.exists]
        if without:
            raise PushError(
                what=f"the folder {settings.workdir or words['workdir']} is not there",
                where=", ".join(without),
                remedy="leave --no-push out, or name the folder with --workdir",
            )
        _keep(keepers, found, tell)
    return Pushed(workdirs=tuple(place.path for place in found))


def _push_tree(links: Sequence[Link], tree: Tree, settings: Settings, run_id: str, tell: Tell) -> Pushed:
    warnings = _tree_warnings(tree, settings)
    for warning in warnings:
        tell(warning)

    def judge(found: Sequence[Workdir]) -> list[int]:
        check_all(check_place, found, tree)
        return [index for index, place in enumerate(found) if _needs_push(place, tree)]

    with own_nonce(tree.root) as nonce:
        question = Question(words=folder_words(settings), run_id=run_id, nonce=nonce, manifest=tree.manifest)
        with open_keepers(links, question, settings.fanout) as keepers:
            turn = wait_turn(keepers, judge, settings.fanout, tell)
            found, folders = turn.found, 0
            earlier = list_earlier(found, tree)
            if turn.behind:
                work = _Push(keepers, tree, found, settings, run_id, secrets.token_hex(6))
                folders = work.run(turn.behind, tell)
                done = fan_out(lambda index: keepers[index].prove(work.token), turn.behind, settings.fanout)
                found = [
                    dict(zip(turn.behind, done, strict=True)).get(index, place) for index, place in enumerate(found)
                ]
            check_all(check_equal, found, tree)
            _keep(keepers, found, tell)
            fan_out(lambda index: keepers[index].wait_end(), turn.behind, settings.fanout)
    return Pushed(
        workdirs=tuple(place.path for place in found),
        tree_hash=tree.manifest.tree_hash,
        files=tree.manifest.files,
        total_bytes=tree.manifest.total_bytes,
        folders_pushed=folders,
        warnings=(*warnings, *earlier, *list_extra(found, tree)),
    )


def _keep(keepers: Sequence[Keeper], found: Sequence[Workdir], tell: Tell) -> None:
    """Leave the folders to the supervisors to come."""
    for keeper, place in zip(keepers, found, strict=True):
        keeper.keep()
        if place.without:
            tell(f"{place.node}: nothing keeps another launch from changing {place.path} ({place.without})")
    others = [place for place in found if place.other]
    if others:
        tell(f"another project of this name has its code on the nodes; this one's lies in {others[0].path}")


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
    keepers: Sequence[Keeper]
    tree: Tree
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
            lambda first: push_paths(self.keepers[first].link, root, self.found[first].path, jobs[first]),
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
        blocked, free_bytes = self.keepers[index].prepare(token=self.token, remove=remove, marker=marker)
        check_room(self.found[index], self.tree, blocked, free_bytes)

    def _groups(self, behind: Sequence[int]) -> list[int]:
        if len(behind) == 1:
            return list(behind)
        seen = fan_out(lambda index: self.keepers[index].read_neighbours(self.token), behind, self.settings.fanout)
        # The first node of the list that sees a folder fills it.
        return sorted({min((*neighbours, index)) for index, neighbours in zip(behind, seen, strict=True)})

    def _changed(self, index: int) -> list[str]:
        place = self.found[index]
        if place.owner != "ours":
            return sorted(self.tree.manifest.paths)
        return sorted({*place.missing, *place.different})
