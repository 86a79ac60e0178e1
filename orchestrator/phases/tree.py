"""Reads the project's tree on the launch host to a manifest, by the ignore rules that it finds on the way."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import PushError
from orchestrator.node.tree_rows import Row, map_threads, read_row, to_bytes, to_text
from orchestrator.phases.git import read_repository
from orchestrator.plan.ignore import Family, IgnoreRules, Layer, literal_pattern
from orchestrator.plan.manifest import Entry, Manifest, build_manifest

if TYPE_CHECKING:
    from orchestrator.settings import Settings

IGNORE_FILES: tuple[tuple[str, Family], ...] = ((".gitignore", "git"), (".aortaignore", "aorta"))
ENVIRONMENT_SIGNS = ("pyvenv.cfg", "conda-meta")
"""What tells a Python environment, whatever its folder is called."""


@dataclass(frozen=True)
class Tree:
    """One reading of the project."""

    root: Path
    manifest: Manifest
    rules: IgnoreRules
    skipped: tuple[str, ...] = ()
    """Sockets, pipes and devices: they cannot travel."""
    environments: tuple[str, ...] = ()
    """Folders left out because they hold a Python environment under a name of their own."""


@dataclass
class _Walk:
    root: Path
    rules: IgnoreRules
    paths: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    environments: list[str] = field(default_factory=list)


def read_tree(settings: Settings) -> Tree:
    """Read and hash everything that travels.

    Raises:
        PushError: the project is no folder, or something in it cannot be read.
    """
    root = settings.project.resolve()
    if not root.is_dir():
        raise PushError(what="the project is no folder", where=str(root), remedy="name the folder with launch.project")
    try:
        walk = _Walk(root, IgnoreRules(*_first_layers(root, settings)))
        _walk(walk, "")
        rows = map_threads(lambda path: read_row(os.fsencode(root), path), walk.paths)
    except OSError as error:
        raise PushError(
            what=f"cannot be read: {error.strerror}",
            where=os.fsdecode(error.filename or root),
            remedy="make it readable, or list it in .aortaignore when the run does not need it",
        ) from error
    # What has gone since its folder was listed is simply not there.
    entries = [_entry(row) for row in rows if row is not None and row[1] != "other"]
    return Tree(root, build_manifest(entries), walk.rules, tuple(walk.skipped), tuple(walk.environments))


def _entry(row: Row) -> Entry:
    path, kind, executable, size, content = row
    return Entry(path, kind, bool(executable), size, content)


def _first_layers(root: Path, settings: Settings) -> tuple[list[Layer], tuple[str, ...]]:
    repository = read_repository(root)
    layers = list(_repository_layers(root, repository.top, repository.exclude))
    experiments = settings.experiments_dir.resolve()
    if experiments.is_relative_to(root) and experiments != root:
        pattern = literal_pattern(to_text(os.fsencode(experiments.relative_to(root))))
        layers.append(Layer("built-in", "launch.experiments_dir", (pattern,)))
    if settings.ignore:
        layers.append(_layer("setting", "launch.ignore", "\n".join(settings.ignore)))
    return layers, repository.tracked_ignored


def _repository_layers(root: Path, top: Path | None, exclude: Path | None) -> Iterator[Layer]:
    if top is None or not root.is_relative_to(top.resolve()):
        return
    top = top.resolve()
    below_top = to_text(os.fsencode(root.relative_to(top))) if root != top else ""
    if exclude is not None and exclude.is_file():
        yield _layer("git", str(exclude), _read_text(exclude), above=below_top)
    for folder in reversed([folder for folder in root.parents if folder.is_relative_to(top)]):
        file = folder / ".gitignore"
        if file.is_file():
            above = to_text(os.fsencode(root.relative_to(folder)))
            yield _layer("git", str(file), _read_text(file), above=above)


def _layer(family: Family, source: str, text: str, folder: str = "", above: str = "") -> Layer:
    layer = Layer(family, source, tuple(text.splitlines()), folder, above)
    try:
        IgnoreRules([layer])
    except ValueError as error:
        raise PushError(
            what=f"a pattern in it is not valid: {error}", where=source, remedy="write it as git reads it"
        ) from error
    return layer


def _read_text(path: Path) -> str:
    return to_text(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))


def _walk(walk: _Walk, folder: str) -> None:
    full = walk.root / os.fsdecode(to_bytes(folder))
    with os.scandir(full) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    names = {entry.name for entry in entries}
    for name, family in IGNORE_FILES:
        if name in names and (full / name).is_file():
            shown = f"{folder}/{name}" if folder else name
            walk.rules.add(_layer(family, shown, _read_text(full / name), folder))
    before = len(walk.paths)
    for entry in entries:
        name = to_text(os.fsencode(entry.name))
        _take(walk, f"{folder}/{name}" if folder else name, entry)
    if folder and len(walk.paths) == before:
        walk.paths.append(folder)  # a folder from which nothing travels still is there on the node


def _take(walk: _Walk, path: str, entry: os.DirEntry[str]) -> None:
    is_folder = entry.is_dir(follow_symlinks=False)
    decision = walk.rules.decide(path, is_folder=is_folder)
    if decision is not None and decision.ignored:
        return
    if is_folder:
        # A rule that brings it back by name means it, environment or not.
        if decision is None and _is_environment(Path(entry.path)):
            walk.environments.append(path)
        else:
            _walk(walk, path)
        return
    mode = entry.stat(follow_symlinks=False).st_mode
    if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
        walk.paths.append(path)
    else:
        walk.skipped.append(path)


def _is_environment(folder: Path) -> bool:
    return any(os.path.lexists(folder / sign) for sign in ENVIRONMENT_SIGNS)
