"""What lies on this node's disks and counts for the run: required paths, the code where it is not pushed, the disks."""

from __future__ import annotations

import os
import stat
import time

from orchestrator.node.probe_command import read_text
from orchestrator.node.probe_disk import existing_parent
from orchestrator.node.probe_script import workdir_of

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from orchestrator.node.tree_rows import Row

    Facts = Dict[str, Any]

ENTRIES_LIMIT = 10000
NETWORK = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "virtiofs", "glusterfs", "wekafs"),
    *("panfs", "afs", "ocfs2", "gfs2", "orangefs", "pvfs2", "quobyte", "vastnfs"),
)
LOCAL_FUSE = ("fuse.mergerfs", "fuse.lxcfs", "fuse.overlayfs", "fuse.fuse-overlayfs", "fuseblk", "fuse.ntfs-3g")

CODE_ENDS = (".py", ".pyi", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".json", ".c", ".cc", ".cpp", ".cu", ".h")
CODE_BYTES = 1 << 20
"""Larger ones are data."""
CODE_FILES = 5000
CODE_ENTRIES = 50000
CODE_NAMED = 1000
"""Of more files only their common hash is told."""
CODE_WALK_S = 10.0
NOT_CODE = ("__pycache__", "node_modules", "experiments", "wandb", "mlruns", "lightning_logs", "site-packages")
ENVIRONMENT_SIGNS = ("pyvenv.cfg", "conda-meta")


def probe_paths(request: Facts) -> Facts:
    """Look at each path that the run requires."""
    workdir = workdir_of(request)
    paths = [str(path) for path in request.get("require_paths") or []]
    return {"project": {"paths": [look_at(path, workdir) for path in paths]}}


def look_at(path: str, workdir: str) -> Facts:
    """Say what stands at a path: ~ is HOME, a relative one lies in the working directory."""
    place = os.path.normpath(os.path.join(workdir, os.path.expanduser(path)))
    facts: Facts = {"path": path, "place": place, "kind": "absent", "readable": False}
    try:
        info = os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return facts
    except OSError as error:
        return {**facts, "kind": "unknown", "trouble": error.strerror or str(error)}
    if stat.S_ISDIR(info.st_mode):
        facts.update(kind="folder", readable=os.access(place, os.R_OK | os.X_OK), entries=_count(place))
    else:
        kind = "file" if stat.S_ISREG(info.st_mode) else "special"
        facts.update(kind=kind, readable=os.access(place, os.R_OK), size=info.st_size)
    return facts


def _count(folder: str) -> Optional[int]:
    try:
        with os.scandir(folder) as entries:
            return sum(1 for _entry, _number in zip(entries, range(ENTRIES_LIMIT)))
    except OSError:
        return None


def probe_disks(request: Facts) -> Facts:
    """Say on which file systems HOME and the code lie, and by what the same folder is known on another node."""
    mounts = list_mounts()
    places = {"home_disk": os.path.expanduser("~"), "code_disk": existing_parent(workdir_of(request))}
    return {"project": {name: describe_disk(path, mounts) for name, path in places.items()}}


def describe_disk(path: str, mounts: List[Tuple[str, str, str]]) -> Facts:
    """Give the mount that holds a path, and a key that only the very same folder has."""
    real = os.path.realpath(path)
    source, mount, kind = find_mount(real, mounts)
    info = os.stat(real)
    network = kind in NETWORK or (kind.startswith("fuse") and kind not in LOCAL_FUSE)
    if network:
        # The server counts the inodes.
        key = "%s %s %d" % (kind, source, info.st_ino)
    else:
        # Disks that were cloned share numbers, but not the moment of the last change to a folder that is in use.
        key = "%d %d %d" % (info.st_dev, info.st_ino, info.st_ctime_ns)
    return {"path": real, "mount": mount, "kind": kind, "source": source if network else "", "key": key}


def list_mounts() -> List[Tuple[str, str, str]]:
    """List what is mounted where."""
    if not _mounts:
        _mounts.append(parse_mounts(read_mounts()))
    return _mounts[0]


def read_mounts() -> str:
    """Read what is mounted, and with which options; once, for three groups of facts ask for it."""
    if not _table:
        _table.append(read_text("/proc/self/mounts", 1 << 20))
    return _table[0]


_table: List[str] = []
_mounts: List[List[Tuple[str, str, str]]] = []


def parse_mounts(text: str) -> List[Tuple[str, str, str]]:
    """Turn /proc/mounts into (source, mount point, type), the last mounted last."""
    mounts = []
    for line in text.splitlines():
        # Blanks inside a word are written as octal numbers.
        source, mount, kind = [*line.split(" "), "", "", ""][:3]
        if kind:
            mounts.append((source, mount.replace("\\040", " ").replace("\\011", "\t"), kind))
    return mounts


def find_mount(path: str, mounts: List[Tuple[str, str, str]]) -> Tuple[str, str, str]:
    """Find the mount that holds a path: the longest mount point above it, of equal ones the last."""
    best = ("", "", "")
    for source, mount, kind in mounts:
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[1]):
            best = (source, mount, kind)
    return best


def probe_code(request: Facts) -> Facts:
    """Hash the code in the working directory, where none is pushed: as the push hashes, but only what looks like code."""
    workdir = workdir_of(request)
    if request.get("push", True) or not request.get("script") or not os.path.isdir(workdir):
        return {}
    from orchestrator.node import tree_rows  # noqa: PLC0415 - only where the code is not pushed

    root = os.fsencode(workdir)
    try:
        names = list(walk_code(workdir))
    except OverflowError as error:
        return {"unknown": {"project.code": "%s holds %s" % (workdir, error)}}
    rows = [row for row in (_row(root, name) for name in names) if row is not None]
    project: Facts = {"code_hash": tree_rows.hash_rows(rows)[:16], "code_count": len(rows)}
    if len(rows) <= CODE_NAMED:
        project["code_files"] = {row[0]: tree_rows.hash_rows([row])[:8] for row in rows}
    return {"project": project}


def _row(root: bytes, name: str) -> Optional[Row]:
    from orchestrator.node import tree_rows  # noqa: PLC0415 - as above

    try:
        return tree_rows.read_row(root, name)
    except OSError:
        # Not readable for us is not readable for the ranks: another content than everywhere else.
        return [name, "other", 0, 0, ""]


def walk_code(workdir: str) -> Iterator[str]:
    """Name the files that look like code; environments, caches and what runs have written are left out.

    Raises:
        OverflowError: there is too much to look at.
    """
    from orchestrator.node import tree_rows  # noqa: PLC0415 - as above

    end = time.monotonic() + CODE_WALK_S
    seen = files = 0
    for folder, folders, names in os.walk(workdir):
        seen += len(folders) + len(names)
        if seen > CODE_ENTRIES or time.monotonic() > end:
            raise OverflowError("more than %d entries" % min(seen, CODE_ENTRIES))
        folders[:] = sorted(name for name in folders if not _left_out(folder, name))
        for name in names:
            full = os.path.join(folder, name)
            if name.startswith(".") or not name.endswith(CODE_ENDS) or _size(full) > CODE_BYTES:
                continue
            files += 1
            if files > CODE_FILES:
                raise OverflowError("more than %d files of code" % CODE_FILES)
            yield tree_rows.to_text(os.fsencode(os.path.relpath(full, workdir)))


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _left_out(folder: str, name: str) -> bool:
    if name.startswith(".") or name in NOT_CODE:
        return True
    return any(os.path.lexists(os.path.join(folder, name, sign)) for sign in ENVIRONMENT_SIGNS)
