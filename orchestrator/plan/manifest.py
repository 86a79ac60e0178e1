"""The project's tree as a value: what travels to a node, and the hash by which two trees are known to be equal."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from orchestrator.light_dataclass import dataclass
from orchestrator.node.tree_rows import hash_rows

if TYPE_CHECKING:
    from orchestrator.node.tree_rows import Row

Kind = Literal["file", "link", "dir"]
MIB = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One file, link or folder without content; bytes of its path that are not UTF-8 stand as surrogates."""

    path: str
    kind: Kind
    executable: bool = False
    size: int = 0
    content: str = ""
    """sha256 of a file, target of a link."""

    @property
    def row(self) -> Row:
        """The form in which it travels."""
        return [self.path, self.kind, int(self.executable), self.size, self.content]


@dataclass(frozen=True)
class Manifest:
    """All entries of a tree."""

    entries: tuple[Entry, ...]

    @cached_property
    def tree_hash(self) -> str:
        """The same for two trees exactly when paths, contents, links and executable bits are the same."""
        return hash_rows(entry.row for entry in self.entries)

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of all entries."""
        return frozenset(entry.path for entry in self.entries)

    @property
    def files(self) -> int:
        """Number of files and links."""
        return sum(entry.kind != "dir" for entry in self.entries)

    @property
    def total_bytes(self) -> int:
        """Size of all files together."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def packed(self) -> str:
        """The manifest as it travels: packed once for all nodes."""
        rows = json.dumps([entry.row for entry in self.entries], separators=(",", ":"))
        return base64.b64encode(zlib.compress(rows.encode("ascii"), 6)).decode("ascii")


def build_manifest(entries: Iterable[Entry]) -> Manifest:
    """Build the manifest, sorted by path."""
    return Manifest(tuple(sorted(entries, key=lambda entry: entry.path)))


def compare_manifests(old: Manifest, new: Manifest) -> list[str]:
    """List the paths in which two readings of a tree differ."""
    return sorted({entry.path for entry in set(old.entries) ^ set(new.entries)})


def render_path(path: str) -> str:
    """Make a path printable whatever bytes it holds."""
    printable = path.encode("utf-8", "backslashreplace").decode("utf-8")
    return printable if printable.isprintable() else repr(printable)


def render_paths(paths: Iterable[str], limit: int = 5) -> str:
    """Name the first few paths and count the rest."""
    known = list(paths)
    more = f" and {len(known) - limit} more" if len(known) > limit else ""
    return ", ".join(render_path(path) for path in known[:limit]) + more


def check_size(manifest: Manifest, warn_mib: float, warn_files: int) -> str | None:
    """Say that the tree is larger than code usually is, and what makes it so."""
    mib = manifest.total_bytes / MIB
    if mib <= warn_mib and manifest.files <= warn_files:
        return None
    groups: dict[str, int] = {}
    for entry in manifest.entries:
        top = "/".join(entry.path.split("/")[:2])
        groups[top] = groups.get(top, 0) + entry.size
    largest = sorted(groups.items(), key=lambda item: -item[1])[:5]
    named = ", ".join(f"{render_path(path)} {size / MIB:.1f} MiB" for path, size in largest)
    return (
        f"the project has {manifest.files} files, {mib:.1f} MiB; largest: {named}; "
        "what the run does not need can be listed in .aortaignore"
    )
