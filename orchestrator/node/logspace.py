"""Keeps a run's log files on this node within their space: frees the oldest parts of the largest files.

A hole is punched from a file's start. The writer's descriptor and every offset stay as they are, which neither
truncating nor renaming could promise. How far each file is to be punched is recorded first, so that whoever
reads zeros there can tell a hole from zeros that a rank wrote.
"""

from __future__ import annotations

import ctypes
import errno
import os

from orchestrator.node.logfiles import LogFiles

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BLOCK = 1 << 16
"""What is freed is a whole number of these: blocks of every size in use, those of 64 KiB pages too."""
LOOK_S = 0.5
SOON_S = 0.01
"""Shortest time between two looks, for ranks that write as fast as memory takes it."""
SLOWEST = 1 << 10
"""Bytes a second; what writes less is waited for by nobody."""
FASTEST = 2 << 30
"""Bytes a second that may begin to come at any moment: a small disk is looked at more often."""
SMALL_DISK_S = 0.03
"""The shortest time between two looks for that reason alone."""
KEPT = 0.75
"""Part of the space that is kept when it has run out: room for what comes until the next look."""

FOREVER = float("inf")
NO_END = 1 << 60

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV, errno.EINVAL)
_LIBC = ctypes.CDLL(None, use_errno=True)

Held = tuple[int, int]
"""From where to where the bytes of a file are held."""


class LogSpace:
    """How much the log files of this node may take, and how far each has been freed."""

    def __init__(self, files: LogFiles, space: int) -> None:
        self._files = files
        self._space = space
        """Bytes; 0: without bound."""
        self.punched: dict[str, int] = {}
        """Name -> offset below which nothing is left."""
        self._used = 0
        self._rate = 0.0
        self._looked = 0.0
        self.next_look = 0.0 if space else FOREVER
        """On the monotonic clock."""

    def tend(self, now: float, record: Callable[[], bool]) -> str:
        """Look at the files when that is due and free what is too much; give a word when that cannot be done here.

        `record` writes `punched` where readers find it; without it nothing is freed.
        """
        if now < self.next_look:
            return ""
        self._files.find()
        held = held_bytes(self._files.logs(), self.punched)
        used = sum(end - start for start, end in held.values())
        free = free_bytes(self._files.folder)
        # On a disk that is smaller than their space, logs may take half of what is there without them.
        space = min(self._space, (used + free) // 2)
        # Who wrote fast and has written nothing in these few milliseconds was only kept waiting.
        rate = max(max(0, used - self._used) / max(now - self._looked, SOON_S), self._rate / 2)
        why = ""
        # So much may come until we can look again, and once more when we are kept waiting.
        if used + rate * 2 * SOON_S > space:
            why = self._free(plan_punches(held, int(space * KEPT)), record)
            used = sum(end - max(start, self.punched.get(name, 0)) for name, (start, end) in held.items())
        room = max(space - used, 0) / 4
        self._used, self._rate, self._looked = used, rate if rate >= SLOWEST else 0.0, now
        at_ease_s = min(LOOK_S, max(SMALL_DISK_S, free / 2 / FASTEST))
        self.next_look = now + (min(at_ease_s, max(SOON_S, room / rate)) if rate else at_ease_s)
        if not self._space:
            self.next_look = FOREVER
        return why

    def _free(self, punches: Mapping[str, int], record: Callable[[], bool]) -> str:
        before = self.punched
        self.punched = {**before, **punches}
        if not punches or not record():
            # A full disk took no record: a hole that nobody knows of would be read as zeros.
            self.punched = before
            return ""
        paths, why = self._files.logs(), ""
        for name, offset in punches.items():
            try:
                punch(paths[name], offset)
            except OSError as error:
                self.punched[name] = before.get(name, 0)
                if error.errno in _CANNOT:
                    self._space = 0
                    why = f"old parts of log files cannot be freed on this file system: {error.strerror}"
        if any(self.punched[name] < offset for name, offset in punches.items()):
            record()
        return why


def free_bytes(folder: str) -> int:
    """Say how much the disk of a folder takes yet; no end of it where it does not tell."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return NO_END
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else NO_END


def held_bytes(paths: Mapping[str, str], punched: Mapping[str, int]) -> dict[str, Held]:
    """Say of each file that is there from where to where its bytes are held.

    By length: the count of blocks lags behind, is smaller with compression and larger where blocks are reserved.
    """
    held = {}
    for name, path in paths.items():
        try:
            held[name] = (punched.get(name, 0), os.stat(path).st_size)
        except OSError:
            continue
    return {name: (start, end) for name, (start, end) in held.items() if end > start}


def plan_punches(held: Mapping[str, Held], target: int) -> dict[str, int]:
    """Say up to where to free each file so that all fit the target: the largest are cut to one level, others stay."""
    level = find_level([end - start for start, end in held.values()], target)
    punches = {}
    for name, (start, end) in held.items():
        # Rounded up to whole blocks, but the one that is being written stays.
        offset = min((end - level + BLOCK - 1) // BLOCK, end // BLOCK) * BLOCK
        if end - start > level and offset > start:
            punches[name] = offset
    return punches


def find_level(sizes: list[int], target: int) -> int:
    """Find the level to which the largest have to be cut so that the sum fits: water poured into a vessel."""
    left, count = target, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            return left // count
        left -= size
        count -= 1
    return max(sizes, default=0)


def punch(path: str, offset: int) -> None:
    """Free a file's bytes below an offset; its length stays.

    Raises:
        OSError: the file system cannot do that, or the file is gone.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        flags = ctypes.c_int(_KEEP_SIZE | _PUNCH_HOLE)
        if _LIBC.fallocate(ctypes.c_int(handle), flags, ctypes.c_int64(0), ctypes.c_int64(offset)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(handle)
