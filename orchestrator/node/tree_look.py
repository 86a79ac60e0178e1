"""Compares the folder that takes the code with the manifest, and reads only what was written since the last time."""

from __future__ import annotations

import marshal
import os
import stat
import struct
import zlib

from orchestrator.node.boot import MARSHAL_VERSION
from orchestrator.node.tree_rows import file_row, other_row, sign_of, to_bytes, to_text
from orchestrator.node.tree_seen import Seen, hash_settled
from orchestrator.node.tree_state import MARKER_FOLDER, PUSHED, Folders, find_stale, names_of, parse_pushed, read_bytes
from orchestrator.node.wire import write_all

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple

    from orchestrator.node.tree_rows import Row, Sign
    from orchestrator.node.tree_state import Pushed

    Waiting = Tuple[int, bytes, Sign]
    Hashed = Tuple[str, bool]

SEEN = os.path.join(MARKER_FOLDER, "seen")
FIELDS = ("hash", "rows", "paths", "signs", "folders", "beside")
EXTRA_LIMIT = 500
FORKS = 4
FORK_BYTES = 4 << 20
"""Less is hashed before another process has started."""
SIGN = "<IQqqQQ"
NOTHING = (0, 0, 0, 0, 0, 0)
WANTED = "differs"
"""In place of a hash where the size says enough."""


class Look:
    """What one launch knows of the folder, from one look to the next."""

    def __init__(self, workdir: str, *, remember: bool) -> None:
        self.workdir = workdir
        self.root = os.fsencode(workdir)
        self.seen = Seen(os.path.join(workdir, SEEN) if remember else None, workdir, FIELDS)
        self.tree_hash: str = self.seen.value.get("hash", "")
        """Of the manifest that is remembered."""
        self.beside: Dict[str, Any] = self.seen.value.get("beside", {})
        self.walls = Folders(self.root)
        self.news = False
        """Something is known that does not stand in the file."""
        self.behind: Optional[List[Row]] = None
        """What was missing or different at the last look."""
        self._rows: Optional[List[Row]] = None

    @property
    def rows(self) -> List[Row]:
        """The manifest that is remembered; its hashes serve where another one is compared."""
        if self._rows is None:
            self._rows = marshal.loads(self.seen.value["rows"]) if self.tree_hash else []  # noqa: S302 - as in tree_seen
            for row, sign in zip(self._rows, self.signs()):
                if row[1] == "file":
                    self.seen.files.setdefault(row[0], (sign, row[4]))
        return self._rows

    def signs(self) -> Iterable[Sign]:
        """Give what is remembered of each row, zeros where nothing is."""
        return struct.iter_unpack(SIGN, self.seen.value.get("signs", b""))

    def compare(self, tree_hash: str, given: Optional[List[Row]]) -> Dict[str, Any]:
        """Compare the folder with the manifest, by content."""
        self.seen.begin()
        if self.tree_hash == tree_hash and self.is_unchanged():
            return {"hash": tree_hash, "missing": [], "different": []}
        self.walls = Folders(self.root)
        self.walls.blocked("")
        remembered = self.rows
        rows = remembered if given is None else given
        missing: List[str] = []
        different: List[str] = []
        for row, there in zip(rows, self.read(rows)):
            if there != row:
                (missing if there is None else different).append(row[0])
        equal = not missing and not different
        behind = {*missing, *different}
        self.behind = [row for row in rows if row[0] in behind]
        # What is equal row by row has the hash of the manifest, and that was built where the manifest was.
        return {"hash": tree_hash if equal else WANTED, "missing": sorted(missing), "different": sorted(different)}

    def is_unchanged(self) -> bool:
        """Say whether all is what it was when it was equal to the manifest that is remembered."""
        self.walls = Folders(self.root)
        for folder in self.seen.value["folders"].split(b"\0"):
            if self.walls.blocked(to_text(folder) + "/x") is not None:
                return False
        prefix, lstat = self.root + b"/", os.lstat
        paths = self.seen.value["paths"]
        try:
            for path, sign in zip(paths.split(b"\0") if paths else (), self.signs()):
                info = lstat(prefix + path)
                if sign != (
                    info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_dev
                ):  # fmt: skip
                    return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read(self, rows: List[Row]) -> List[Optional[Row]]:
        """Read what stands where the manifest has something; files of another size than wanted are not hashed."""
        found: List[Optional[Row]] = []
        waiting: List[Waiting] = []
        prefix, files, folder, wall = self.root + b"/", self.seen.files, None, None
        for row in rows:
            path = row[0]
            upper = path.rpartition("/")[0]
            if upper != folder:
                folder, wall = upper, self.walls.blocked(path)
            found.append(None)
            if wall is not None:
                continue
            full = prefix + to_bytes(path)
            try:
                info = os.lstat(full)
                if not stat.S_ISREG(info.st_mode):
                    found[-1] = other_row(full, path, info)
                    if found[-1] == row and row[1] == "dir":
                        self.walls.signs[path] = sign_of(info)
                    continue
            except (FileNotFoundError, NotADirectoryError):
                continue
            sign = sign_of(info)
            known = files.get(path)
            content = known[1] if known is not None and known[0] == sign else None
            if content is None and info.st_size == row[3]:
                waiting.append((len(found) - 1, full, sign))
            found[-1] = file_row(path, info, content or WANTED)
        self.fill(found, waiting)
        return found

    def fill(self, found: List[Optional[Row]], waiting: List[Waiting]) -> None:
        """Hash what waits for it."""
        if not waiting:
            return
        for (place, _, sign), hashed in zip(waiting, hash_all(waiting, self.seen.began_ns)):
            row = found[place]
            if hashed is None or row is None:
                found[place] = None
                continue
            row[4] = hashed[0]
            if hashed[1] and self.seen.note(row[0], sign, hashed[0]):
                self.news = True

    def look_beside(self, tree_hash: str, given: Optional[List[Row]]) -> Dict[str, Any]:
        """List what is of an earlier push (stale: [path, kind]), and what was never pushed (extra: [path, is a folder])."""
        pushed = read_bytes(os.path.join(self.workdir, PUSHED))
        paths = self.seen.value["paths"] if self.tree_hash == tree_hash else join_paths(given or [])
        about = [zlib.crc32(paths), len(paths), zlib.crc32(pushed), len(pushed)]
        beside: Optional[Beside] = None
        if self.beside.get("about") != about:
            beside = Beside(given or self.rows, parse_pushed(pushed))
            self.beside = {"about": about, "folders": {}, "left": beside.list_left()}
            self.news = True
        folders: Dict[str, Tuple[Sign, List[List[Any]]]] = self.beside["folders"]
        extra: List[List[Any]] = []
        for folder, sign in sorted(self.walls.signs.items()):
            if folder in folders and folders[folder][0] == sign:
                extra += folders[folder][1]
                continue
            folders.pop(folder, None)
            beside = beside or Beside(given or self.rows, parse_pushed(pushed))
            found = beside.list_extra(self.root, folder)
            extra += found
            if self.seen.is_lasting(sign):
                folders[folder] = (sign, found)
                self.news = True
        left = self.beside["left"]
        return {"extra": extra[:EXTRA_LIMIT], "stale": find_stale(self.root, given or self.rows, left) if left else []}

    def remember(self, tree_hash: str, given: Optional[List[Row]]) -> None:
        """Write down what is known of a folder that is equal to the manifest."""
        if not self.news and self.tree_hash == tree_hash:
            return
        rows = self.rows if given is None else given
        prefix = self.root + b"/"
        signs = []
        for row in rows:
            known = self.seen.files.get(row[0])
            if row[1] != "file":
                # A link has the target that it was made with, and an empty folder is one while its time stands.
                sign = sign_of(os.lstat(prefix + to_bytes(row[0])))
                known = (sign, row[4]) if self.seen.is_lasting(sign) else None
            signs.append(struct.pack(SIGN, *(known[0] if known and known[1] == row[4] else NOTHING)))
        value = {
            "hash": tree_hash,
            "rows": marshal.dumps(rows, MARSHAL_VERSION),
            "paths": join_paths(rows),
            "signs": b"".join(signs),
            "folders": b"\0".join(to_bytes(folder) for folder in self.walls.signs),
            "beside": self.beside,
        }
        self.seen.save(value)
        self.seen.value, self._rows, self.tree_hash, self.news = value, rows, tree_hash, False


def join_paths(rows: List[Row]) -> bytes:
    """Build one text of all paths."""
    return to_bytes("\0".join([row[0] for row in rows]))


class Beside:
    """The names by which it is told what nobody pushed."""

    def __init__(self, rows: List[Row], pushed: Pushed) -> None:
        self.wanted, upper = names_of(rows)
        self.pushed = pushed
        self.known = self.wanted | upper | set(pushed)

    def list_left(self) -> List[List[str]]:
        """List what was pushed before and is not in the manifest."""
        return [[path, kind] for path, kind in sorted(self.pushed.items()) if path not in self.wanted]

    def list_extra(self, root: bytes, folder: str) -> List[List[Any]]:
        """List what lies in one folder and was never pushed."""
        extra: List[List[Any]] = []
        try:
            entries = os.scandir(os.path.join(root, to_bytes(folder)))
        except OSError:
            return extra
        with entries:
            for entry in entries:
                name = to_text(entry.name)
                path = folder + "/" + name if folder else name
                if path not in self.known and path != MARKER_FOLDER:
                    extra.append([path, entry.is_dir(follow_symlinks=False)])
                    if len(extra) >= EXTRA_LIMIT:
                        break
        return extra


def hash_all(waiting: List[Waiting], began_ns: int) -> List[Optional[Hashed]]:
    """Hash files, much of it in several processes: None for one that is gone."""
    count = min(FORKS, os.cpu_count() or 1)
    if count == 1 or sum(sign[1] for _, _, sign in waiting) < FORK_BYTES:
        return [hash_one(item, began_ns) for item in waiting]
    parts = [waiting[number::count] for number in range(count)]
    hashed: List[Optional[Hashed]] = [None] * len(waiting)
    for number, helper in enumerate([Helper(part, began_ns) for part in parts]):
        hashed[number::count] = helper.read()
    return hashed


def hash_one(item: Waiting, began_ns: int) -> Optional[Hashed]:
    """Hash one file; None when it is gone."""
    try:
        return hash_settled(item[1], item[2], began_ns)
    except (FileNotFoundError, NotADirectoryError):
        return None


class Helper:
    """Another process that hashes a part; what it cannot do is done here, where an error finds its way."""

    def __init__(self, part: List[Waiting], began_ns: int) -> None:
        self.part, self.began_ns = part, began_ns
        self.handle, handle = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.handle)
                write_all(handle, marshal.dumps([hash_one(item, began_ns) for item in part], MARSHAL_VERSION))
            finally:
                os._exit(0)
        os.close(handle)

    def read(self) -> List[Optional[Hashed]]:
        """Wait for what it found."""
        data = b""
        while some := os.read(self.handle, 1 << 16):
            data += some
        os.close(self.handle)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass  # somebody has told the kernel that nobody waits
        try:
            found: List[Optional[Hashed]] = marshal.loads(data)  # noqa: S302 - from our own child
        except (EOFError, ValueError, TypeError):
            found = []
        return found if len(found) == len(self.part) else [hash_one(item, self.began_ns) for item in self.part]
