"""Judges the code folders as the nodes describe them: which we may write into, and whether they hold our tree."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from orchestrator.errors import AortaError, PushError, Several
from orchestrator.phases.tree import Tree
from orchestrator.phases.workdir import OURS, Workdir
from orchestrator.plan.manifest import MIB, render_paths

BLOCK = 4096
"""What even a small file takes on most disks."""


def check_all(check: Callable[[Workdir, Tree], None], found: Sequence[Workdir], tree: Tree) -> None:
    """Check every node's folder and tell all that is wrong together.

    Raises:
        AortaError: the one that is wrong, or Several.
    """
    errors: list[AortaError] = []
    for place in found:
        try:
            check(place, tree)
        except PushError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise Several(errors)


def check_place(place: Workdir, tree: Tree) -> None:
    """Refuse a folder that we must not write into.

    Raises:
        PushError: it is somebody else's, or a part of the launch host's own tree.
    """
    if place.state == "above":
        raise PushError(
            what=f"{place.path} holds the project itself",
            where=place.node,
            remedy="name another folder with --workdir, or share the project and use --no-push",
        )
    if place.state == "inside" and not tree.rules.is_ignored(place.inside, is_folder=True):
        raise PushError(
            what=f"{place.path} lies in the project itself",
            where=place.node,
            remedy="name a folder outside of it with --workdir, or list it in .aortaignore",
        )
    if place.owner == "foreign":
        raise PushError(
            what=f"{place.path} is there, is not empty and was not made by aorta-launch",
            where=place.node,
            remedy="name another folder with --workdir, empty this one, or use it as it is with --no-push",
        )


def check_equal(place: Workdir, tree: Tree) -> None:
    """Prove that the folder holds the very tree that is here.

    Raises:
        PushError: it does not.
    """
    if place.owner in OURS and place.tree_hash == tree.manifest.tree_hash:
        return
    paths = sorted({*place.missing, *place.different})
    own = place.state == "launch-host"
    raise PushError(
        what=f"the code in {place.path} is not the code here: {render_paths(paths) or 'tree hashes differ'}",
        where=place.node,
        remedy="the node sees this very folder: does its file system lag behind?"
        if own
        else "what changes files there?",
    )


def check_room(place: Workdir, tree: Tree, blocked: Sequence[str], free_bytes: int) -> None:
    """Refuse a folder in which the copy would meet an obstacle or the end of the disk.

    rsync cannot be asked afterwards: the words of a receiver that found its disk full do not always come back.

    Raises:
        PushError: something that we did not make stands in the way, or the space is too small.
    """
    if blocked:
        raise PushError(
            what=f"links or folders that we did not make stand where the project has something else: "
            f"{render_paths(blocked)} in {place.path}",
            where=place.node,
            remedy="move them away on the node, or name another folder with --workdir",
        )
    missing, different = set(place.missing), set(place.different)
    new, changed = [], [0]
    for entry in tree.manifest.entries:
        on_disk = -(-entry.size // BLOCK) * BLOCK
        if entry.path in missing or place.owner != "ours":
            new.append(on_disk)
        elif entry.path in different:
            changed.append(on_disk)
    needed_bytes = sum(new) + max(changed)  # a changed file lies beside the old one for a moment
    if needed_bytes > free_bytes:
        raise PushError(
            what=f"no space is left for the copy: {needed_bytes / MIB:.1f} MiB are needed in {place.path}, "
            f"{free_bytes / MIB:.1f} MiB are free",
            where=place.node,
            remedy="free space there, leave out with .aortaignore what the run does not need, or use --workdir",
        )


def list_removable(place: Workdir, tree: Tree) -> list[str]:
    """List what an earlier push brought and the project has no more."""
    # What is ignored now was perhaps made by the run since: it stays, as everything that we did not put there.
    return [path for path in place.stale if not tree.rules.is_ignored(path)]


def list_earlier(found: Sequence[Workdir], tree: Tree) -> list[str]:
    """Say where code of another project, or from another launch host, lay before."""
    here = f"{socket.gethostname()}:{tree.root}"
    warnings = []
    for before in sorted({place.pushed_from for place in found} - {"", here}):
        names = [place.node for place in found if place.pushed_from == before]
        warnings.append(f"{found[0].path} held the code of {before} before ({', '.join(names)})")
    return warnings


def list_extra(found: Sequence[Workdir], tree: Tree) -> list[str]:
    """Say what nobody pushed lies beside the code and was left there."""
    told = {pair for place in found if place.owner == "ours" for pair in place.extra}
    extra = sorted({path for path, is_folder in told if not tree.rules.is_ignored(path, is_folder=is_folder)})
    return [f"on the nodes, but not in the project, and left there: {render_paths(extra)}"] if extra else []
