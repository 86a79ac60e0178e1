"""Brings the project's code to every node and proves by hash that it is the same there."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orchestrator.errors import AortaError, PushError
from orchestrator.light_dataclass import dataclass
from orchestrator.phases.begin import Begun, Opened, open_push
from orchestrator.phases.carry import Packer, bring_paths
from orchestrator.phases.places import (
    check_all,
    check_equal,
    check_place,
    check_room,
    list_earlier,
    list_extra,
    list_removable,
)
from orchestrator.phases.tree import Tree, read_tree
from orchestrator.phases.turns import wait_turn
from orchestrator.phases.workdir import Keeper, Workdir, default_workdir
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


def begin_push(links: Sequence[Link], settings: Settings, run_id: str, undo: ExitStack) -> Begun:
    """Begin a push while the checks still go on; when they fail it is called off, which leaves nothing anywhere."""
    begun = Begun(links, settings, run_id)
    undo.callback(begun.cancel)
    return begun


def push_code(
    links: Sequence[Link],
    facts: Sequence[Facts],
    settings: Settings,
    run_id: str,
    tell: Tell | None = None,
    begun: Begun | None = None,
) -> Pushed:
    """Make the code folder of every node equal to the project; an equal one costs one round trip and no copy.

    Raises:
        PushError: a folder is not ours, a live run uses it, the copy failed, or a tree differs afterwards.
        LinkLostError: a node does not answer.
    """
    del facts  # the nodes themselves say where their folders are
    tell = tell or (lambda _text: None)
    if begun is not None and begun.run_id != run_id:
        begun.cancel()
        begun = None
    opened = begun.take() if begun is not None else open_push(links, settings, run_id)
    if opened.tree is None:
        return _find_code(opened, settings, tell)
    try:
        return _push_tree(opened, opened.tree, settings, run_id, tell)
    except AortaError:
        again = read_tree(settings)
        if again.manifest.tree_hash == opened.tree.manifest.tree_hash:
            raise
    try:
        return _push_tree(open_push(links, settings, run_id, again), again, settings, run_id, tell)
    except AortaError:
        last = read_tree(settings)
        if last.manifest.tree_hash == again.manifest.tree_hash:
            raise
        raise PushError(
            what=f"files change while they are pushed: {_changes(again, last)}",
            where=str(again.root),
            remedy="wait until nothing writes into the project, or list these files in .aortaignore",
        ) from None


def _changes(old: Tree, new: Tree) -> str:
    return render_paths(compare_manifests(old.manifest, new.manifest))


def _find_code(opened: Opened, settings: Settings, tell: Tell) -> Pushed:
    with opened.undo:
        found = wait_turn(opened.keepers, lambda _found: [], settings.fanout, tell).found
        without = [place.node for place in found if not place.exists]
        if without:
            raise PushError(
                what=f"the folder {settings.workdir or default_workdir(settings.project)} is not there",
                where=", ".join(without),
                remedy="leave --no-push out, or name the folder with --workdir",
            )
        _keep(opened.keepers, found, tell)
    return Pushed(workdirs=tuple(place.path for place in found))


def _push_tree(opened: Opened, tree: Tree, settings: Settings, run_id: str, tell: Tell) -> Pushed:
    keepers = opened.keepers
    with opened.undo:
        warnings = _tree_warnings(tree, settings)
        for warning in warnings:
            tell(warning)

        def judge(found: Sequence[Workdir]) -> list[int]:
            check_all(check_place, found, tree)
            return [index for index, place in enumerate(found) if _needs_push(place, tree)]

        turn = wait_turn(keepers, judge, settings.fanout, tell)
        found, folders = turn.found, 0
        earlier = list_earlier(found, tree)
        if turn.behind:
            work = _Push(keepers, tree, found, settings, run_id, secrets.token_hex(6))
            folders = work.run(turn.behind, tell)
            done = fan_out(lambda index: keepers[index].prove(work.token), turn.behind, settings.fanout)
            found = [dict(zip(turn.behind, done, strict=True)).get(index, place) for index, place in enumerate(found)]
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
        packer = Packer(self.tree)
        fan_out(
            lambda first: bring_paths(self.keepers[first], packer, self.found[first].path, jobs[first]),
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
