"""What the run writes to: free space, and whether HOME can be written."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict

    Facts = Dict[str, Any]

GIB = float(1 << 30)


def probe_disk(request: Facts) -> Facts:
    """Measure the file systems of the working directory and of our own folder in HOME."""
    workdir = existing_parent(os.path.expanduser(str(request.get("workdir") or "~")))
    ours = existing_parent(os.path.expanduser("~/.aorta"))
    disks = {path: os.statvfs(path) for path in (workdir, ours)}
    fullest = min(disks, key=lambda path: disks[path].f_bavail * disks[path].f_frsize)
    state = disks[fullest]
    return {
        "disk_free_gib": round(state.f_bavail * state.f_frsize / GIB, 3),
        "disk_path": fullest,
        # A file system without a count of inodes (btrfs) says 0 of 0.
        "inodes_free": state.f_favail if state.f_files else -1,
    }


def existing_parent(path: str) -> str:
    """Give the path itself or the nearest folder above it that exists."""
    path = os.path.abspath(path)
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return path


def probe_home(request: Facts) -> Facts:
    """Say where HOME is and whether our folder in it can be written, without writing."""
    del request
    home = os.path.expanduser("~")
    # Where our folder is there already, HOME itself need not be written.
    enough = os.X_OK if os.path.isdir(os.path.join(home, ".aorta")) else os.W_OK | os.X_OK
    return {"home": home, "home_writable": os.path.isdir(home) and os.access(home, enough)}
