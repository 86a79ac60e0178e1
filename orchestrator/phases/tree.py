"""Reads the project's tree on the launch host to a manifest, by the ignore rules that it finds on the way."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import PushError
from orchestrator.light_dataclass import dataclass
from orchestrator.node.tree_rows import file_row, other_row, sign_of, to_bytes, to_text
from orchestrator.node.tree_seen import Seen, hash_settled
from orchestrator.phases.git import read_repository
from orchestrator.plan.ignore import Family, IgnoreRules, Layer, literal_pattern
from orchestrator.plan.manifest import Entry, Manifest, build_manifest
from orchestrator.plan.paths import seen_file

if TYPE_CHECKING:
    from orchestrator.node.tree_rows import Row, Sign
    from orchestrator.settings import Settings

IGNORE_FILES: tuple[tuple[str, Family], ...] = ((".gitignore", "git"), (".aortaignore", "aorta"))
ENVIRONMENT_SIGNS = ("pyvenv.cfg", "conda-meta")
"""What tells a Python environment, whatever its folder is called."""
OLD_S = 60 * 86400.0
THREADS = 4
"""Disks are waited for, and much is hashed, outside of the interpreter's lock."""


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
    found: list[tuple[str, os.stat_result]] = field(default_factory=list)
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
        seen = _open_seen(root)
        walk = _Walk(root, IgnoreRules(*_first_layers(root, settings)))
        _walk(walk, "")
        rows = _read_rows(walk, seen)
    except OSError as error:
        raise PushError(
            what=f"cannot be read: {error.strerror}",
            where=os.fsdecode(error.filename or root),
            remedy="make it readable, or list it in .aortaignore when the run does not need it",
        ) from error
    entries = [Entry(path, kind, bool(executable), size, content) for path, kind, executable, size, content in rows]
    return Tree(root, build_manifest(entries), walk.rules, tuple(walk.skipped), tuple(walk.environments))


def _open_seen(root: Path) -> Seen:
    file = seen_file(Path.home(), root)
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    seen = Seen(str(file), str(root), ("files",))
    seen.files = seen.value.get("files", {})
    return seen


def _read_rows(walk: _Walk, seen: Seen) -> list[Row]:
    """Read what the walk has found; hash only what was written since it was hashed the last time."""
    root = os.fsencode(walk.root)
    rows: list[Row | None] = []
    waiting: list[tuple[int, bytes, Sign]] = []
    for path, info in walk.found:
        full = root + b"/" + to_bytes(path)
        if not stat.S_ISREG(info.st_mode):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                rows.append(other_row(full, path, info))
            continue
        sign = sign_of(info)
        known = seen.files.get(path)
        content = known[1] if known is not None and known[0] == sign else None
        if content is None:
            waiting.append((len(rows), full, sign))
        rows.append(file_row(path, info, content or ""))
    for (place, _, sign), hashed in zip(waiting, _hash_all(waiting, seen.began_ns), strict=True):
        row = rows[place]
        # What has gone since its folder was listed is simply not there.
        if hashed is None or row is None:
            rows[place] = None
            continue
        row[4], lasting = hashed
        if lasting:
            seen.note(row[0], sign, row[4])
    found = [row for row in rows if row is not None]
    if waiting:
        files = {row[0]: seen.files[row[0]] for row in found if row[0] in seen.files}
        seen.save({"files": files})
        _forget_old(seen)
    return found


def _forget_old(seen: Seen) -> None:
    """Remove what is remembered of projects that were not pushed for long."""
    with contextlib.suppress(OSError):
        for file in Path(seen.file or "").parent.glob("*-*"):
            if time.time() - file.stat().st_mtime > OLD_S:
                file.unlink(missing_ok=True)


def _hash_all(waiting: Sequence[tuple[int, bytes, Sign]], began_ns: int) -> list[tuple[str, bool] | None]:
    hashed: list[tuple[str, bool] | None] = [None] * len(waiting)
    errors: list[OSError] = []

    def work(first: int) -> None:
        for place in range(first, len(waiting), THREADS):
            try:
                hashed[place] = hash_settled(waiting[place][1], waiting[place][2], began_ns)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=work, args=(first,)) for first in range(min(THREADS, len(waiting)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return hashed


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
    before = len(walk.found)
    for entry in entries:
        name = to_text(os.fsencode(entry.name))
        _take(walk, f"{folder}/{name}" if folder else name, entry)
    if folder and len(walk.found) == before:
        # A folder from which nothing travels still is there on the node.
        walk.found.append((folder, full.lstat()))


def _take(walk: _Walk, path: str, entry: os.DirEntry[str]) -> None:
    is_folder = entry.is_dir(follow_symlinks=False)
    decision = walk.rules.decide(path, is_folder=is_folder)
    if decision is not None and decision.ignored:
        return
    if is_folder:
        # A rule that brings it back by name means it, environment or not.
        if decision is None and _is_environment(entry.path):
            walk.environments.append(path)
        else:
            _walk(walk, path)
        return
    try:
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # it has gone since the folder was listed
    if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
        walk.found.append((path, info))
    else:
        walk.skipped.append(path)


def _is_environment(folder: str) -> bool:
    return any(os.path.lexists(f"{folder}/{sign}") for sign in ENVIRONMENT_SIGNS)
