"""Looks at the folder on a node that takes the code: whose it is, and how its content differs from the manifest."""

from __future__ import annotations

import os
import stat

from orchestrator.node.fastjson import loads
from orchestrator.node.tree_rows import is_safe, sign_of, to_bytes

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

    from orchestrator.node.tree_rows import Row, Sign

    Pushed = Dict[str, str]
    """Path -> kind, of everything that we ever put into the folder and have not removed."""

MARKER_FOLDER = ".aorta-code"
MARKER = os.path.join(MARKER_FOLDER, "marker.json")
PUSHED = os.path.join(MARKER_FOLDER, "pushed.json")


def expand(workdir: str) -> str:
    """Make the folder absolute; a relative one lies below the user's home."""
    home = os.path.expanduser("~")
    return os.path.abspath(os.path.join(home, os.path.expanduser(workdir)))


def read_marker(workdir: str) -> Optional[Dict[str, Any]]:
    """Read whose code lies in a folder; None when it is not one of ours."""
    marker = read_json(os.path.join(workdir, MARKER))
    return marker if isinstance(marker, dict) else None


def choose_folder(request: Dict[str, Any]) -> str:
    """Choose between the folder that goes by the project's name and the other one, for projects of equal names.

    The other one is taken when it has this project's code already, or when the first has another project's.
    """
    first, other = expand(request["workdir"]), str(request.get("other") or "")
    if not other:
        return first
    whose = (request["launch_host"], request["project"])
    if is_of(read_marker(expand(other)), whose):
        return expand(other)
    marker = read_marker(first)
    if marker is None or is_of(marker, whose) or (not request.get("push", True) and not os.path.isdir(expand(other))):
        return first
    return expand(other)


def is_of(marker: Optional[Dict[str, Any]], whose: Tuple[str, str]) -> bool:
    """Say whether a marker names this launch host and project."""
    return marker is not None and (marker.get("launch_host"), marker.get("project")) == whose


def read_json(path: str) -> Any:
    """Read one of our own files; None when it is missing or cut off."""
    try:
        with open(path, "rb") as file:
            return loads(file.read())
    except (OSError, ValueError):
        return None


def read_bytes(path: str) -> bytes:
    """Read one of our own files; nothing when it is missing."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def read_pushed(workdir: str) -> Pushed:
    """Read what was pushed before."""
    return parse_pushed(read_bytes(os.path.join(workdir, PUSHED)))


def parse_pushed(raw: bytes) -> Pushed:
    """Parse what was pushed before, less what can be no path of ours."""
    try:
        stored = loads(raw)
    except ValueError:
        stored = None
    if not isinstance(stored, dict):
        return {}
    return {path: kind for path, kind in stored.items() if is_safe(path) and path.split("/")[0] != MARKER_FOLDER}


def read_state(workdir: str, nonce: str, project: str) -> Tuple[str, str]:
    """Say whose folder it is: absent, ours, foreign, launch-host, inside or above the launch host's tree.

    The second value is the folder's path in that tree, when it lies inside.
    """
    real = os.path.realpath(workdir)
    own = os.path.realpath(project)
    if os.path.lexists(os.path.join(real, nonce)):
        return "launch-host", ""
    upper = os.path.dirname(real)
    while upper != os.path.dirname(upper):
        if os.path.lexists(os.path.join(upper, nonce)):
            return "inside", os.path.relpath(real, upper)
        upper = os.path.dirname(upper)
    if os.path.lexists(os.path.join(own, nonce)) and own.startswith(real.rstrip("/") + "/"):
        return "above", ""
    return read_owner(workdir), ""


def read_owner(workdir: str) -> str:
    """Say whether the folder is absent (or empty), ours by its marker, or foreign."""
    try:
        names = set(os.listdir(workdir))
    except FileNotFoundError:
        if os.path.isdir(workdir):
            return read_owner(workdir)  # another node that shares it has just made it
        return "foreign" if os.path.lexists(workdir) else "absent"
    except NotADirectoryError:
        return "foreign"
    if not names - {MARKER_FOLDER}:
        return "absent" if read_json(os.path.join(workdir, MARKER)) is None else "ours"
    return "ours" if read_json(os.path.join(workdir, MARKER)) is not None else "foreign"


class Folders:
    """Knows which folders on the way to a path are real ones: nothing is read or removed through a link."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._blocked: Dict[str, Optional[str]] = {}
        self.signs: Dict[str, Sign] = {}
        """Of the folders that are there."""

    def blocked(self, path: str) -> Optional[str]:
        """Give the nearest upper path that is there and is no real folder."""
        upper = path.rpartition("/")[0]
        if upper not in self._blocked:
            above = self.blocked(upper) if upper else None
            self._blocked[upper] = self._look(upper) if above is None else above
        return self._blocked[upper]

    def _look(self, path: str) -> Optional[str]:
        try:
            # The folder itself may be reached through a link; none below it.
            info = os.lstat(os.path.join(self._root, to_bytes(path))) if path else os.stat(self._root)
        except FileNotFoundError:
            return None
        if not stat.S_ISDIR(info.st_mode):
            return path
        self.signs[path] = sign_of(info)
        return None


def find_blocked(workdir: str, rows: List[Row]) -> List[str]:
    """List what stands in the way of the manifest and is no remains of an earlier push: links and full folders."""
    root = os.fsencode(workdir)
    folders = Folders(root)
    blocked = {upper for upper in (folders.blocked(row[0]) for row in rows) if upper is not None}
    for path, kind, _executable, _size, _content in rows:
        if kind == "dir" or folders.blocked(path) is not None:
            continue
        try:
            mode = os.lstat(os.path.join(root, to_bytes(path))).st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(mode):
            blocked.add(path)
    return sorted(blocked)


def find_stale(root: bytes, rows: List[Row], left: List[List[str]]) -> List[List[str]]:
    """List what is still there of what was pushed before and is no longer in the manifest."""
    if not left:
        return []
    folders = Folders(root)
    upper = names_of(rows)[1]
    stale = []
    for path, kind in left:
        if folders.blocked(path) is not None:
            continue
        full = os.path.join(root, to_bytes(path))
        is_folder = os.path.isdir(full) and not os.path.islink(full)
        # A file of ours that somebody replaced by a folder is not ours any more.
        if os.path.lexists(full) and is_folder == (kind == "dir"):
            if is_folder and (path in upper or os.listdir(full)):
                continue
            stale.append([path, kind])
    return stale


def names_of(rows: List[Row]) -> Tuple[Set[str], Set[str]]:
    """Give the paths of the manifest and the folders above them."""
    wanted = {row[0] for row in rows}
    upper = {""}
    for path in wanted:
        above = path
        while above not in upper:
            upper.add(above)
            above = above.rpartition("/")[0]
    return wanted, upper - {row[0] for row in rows if row[1] != "dir"}
