"""Remembers what was hashed, so that what was not written since costs a look instead of a reading.

A file is taken for what it was when mode, size, times, inode and device are what they were. The time that counts is
ctime: the kernel sets it with every write, and no program can set it. So that not one changed file is missed, nothing
is remembered or believed where that does not hold:

- A file that was written in the grain of the clock in which it was hashed could be written again and show the same
  time. It is remembered only when its ctime was over before the hashing began (git calls the others racily clean).
- A file that somebody has open for writing, or mapped, may change without a new time. The kernel grants no lease on it.
- A clock that was set back could come by the same time again, and a crash can lose times: what was remembered before
  either is forgotten.
- Only file systems of this kernel that note every write at once are trusted; the others are read every time.

What is remembered lies in a file that may be damaged, of another version or missing: that costs time and nothing else.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import time
import zlib
from _signal import SIGURG  # type: ignore[import-not-found] # signal itself costs more than all of this

from orchestrator.node.boot import MARSHAL_VERSION
from orchestrator.node.tree_rows import hash_open, open_file, sign_of

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Optional, Tuple

    from orchestrator.node.tree_rows import Sign

    Value = Dict[str, Any]
    Known = Tuple[Sign, str]

MAGIC = b"aorta-seen 1\n"
"""Another number for every other meaning of what follows."""
COARSE = 5
"""CLOCK_REALTIME_COARSE: the clock by which the kernel dates files."""
SECOND_NS = 1_000_000_000
STEP_NS = 20_000_000
"""A clock that is set back by less changes nothing here."""
TRUSTED = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay"})
"""Not tmpfs: what is written there through a mapping gets no new time. Not NFS and its like: times come late."""
MOUNTS = "/proc/self/mountinfo"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def coarse_ns() -> int:
    """Read the clock by which the kernel dates files."""
    return time.clock_gettime_ns(COARSE)


def read_clock() -> Dict[str, Any]:
    """Read what tells later whether the clock was set back, or the machine started again."""
    with open(BOOT_ID, encoding="ascii") as file:
        boot = file.read().strip()
    # To be held up between the two can only make it more.
    ahead = min(-time.clock_gettime_ns(time.CLOCK_BOOTTIME) + time.time_ns() for _ in range(3))
    return {"boot": boot, "ahead": ahead, "now": time.time_ns()}


def is_clock_of(then: Dict[str, Any]) -> bool:
    """Say whether the clock has gone forward all the time since it was read."""
    now = read_clock()
    steady = now["ahead"] > then["ahead"] - STEP_NS and now["now"] >= then["now"]
    return bool(now["boot"] == then["boot"] and steady)


def is_trusted(folder: str) -> bool:
    """Say whether the file system of a folder notes every write at once."""
    device = os.stat(folder).st_dev
    number = "%d:%d" % (os.major(device), os.minor(device))
    kinds: Dict[str, str] = {}
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kinds[left.split(" ", 3)[2]] = right.split(" ", 1)[0]
    if number not in kinds:
        # A subvolume of btrfs has a number of its own that stands in no table.
        return "btrfs" in kinds.values()
    return kinds[number] in TRUSTED


def is_settled(sign: Sign, began_ns: int) -> bool:
    """Say whether a file's last change was over when the hashing began, as far as its file system tells times apart."""
    grain_ns = STEP_NS if sign[3] % SECOND_NS else 2 * SECOND_NS
    return sign[3] + grain_ns <= began_ns


def is_being_written(fd: int) -> bool:
    """Say whether anybody has this file open for writing, or mapped to be written; what cannot be known counts as yes."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, SIGURG)  # whoever opens it in this moment must not end us by SIGIO
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    return False


def hash_settled(full: bytes, sign: Sign, began_ns: int) -> Tuple[str, bool]:
    """Build the sha256 of a file that looked like this, and say whether that may be remembered."""
    fd = open_file(full)
    try:
        # Before it is read: who opens it later writes later, and that shows.
        lasting = is_settled(sign, began_ns) and not is_being_written(fd)
        content = hash_open(fd, sign[1])
        return content, lasting and sign_of(os.fstat(fd)) == sign
    finally:
        os.close(fd)


class Seen:
    """What is remembered of one tree, and where."""

    def __init__(self, file: Optional[str], folder: str, fields: Iterable[str]) -> None:
        """Remember nothing when there is no file for it, or the folder's file system is not trusted."""
        self.file = file
        self.device = -1
        self.value: Value = {}
        self.files: Dict[str, Known] = {}
        self.began_ns = coarse_ns()
        try:
            if file is not None and is_trusted(folder):
                self.device = os.stat(folder).st_dev
                value = load(file)
                self.value = value if all(field in value for field in fields) else {}
        except (OSError, ValueError, LookupError):
            pass

    def begin(self) -> None:
        """Begin another look at the tree."""
        self.began_ns = coarse_ns()

    def is_lasting(self, sign: Sign) -> bool:
        """Say whether what was found out since the beginning of a look holds as long as something looks like this."""
        return sign[5] == self.device and is_settled(sign, self.began_ns)

    def note(self, path: str, sign: Sign, content: str) -> bool:
        """Remember a hash that lasts; say whether it can be."""
        if sign[5] != self.device:
            return False
        self.files[path] = (sign, content)
        return True

    def save(self, value: Value) -> None:
        """Write down what is remembered, by rename; where that is not possible, it costs time only."""
        if self.device < 0 or self.file is None:
            return
        fresh = "%s.%s" % (self.file, os.urandom(6).hex())
        try:
            body = marshal.dumps({**read_clock(), **value}, MARSHAL_VERSION)
            with open(fresh, "xb") as file:
                file.write(MAGIC + b"%08x" % zlib.crc32(body) + body)
            os.replace(fresh, self.file)
        except OSError:
            if os.path.lexists(fresh):
                os.unlink(fresh)


def load(path: str) -> Value:
    """Read what was remembered; nothing when it is damaged, of another version, or older than a step of the clock."""
    with open(path, "rb") as file:
        data = file.read()
    start = len(MAGIC) + 8
    if not data.startswith(MAGIC) or int(data[len(MAGIC) : start], 16) != zlib.crc32(data[start:]):
        return {}
    value: Value = marshal.loads(data[start:])  # noqa: S302 - what we have written, to the last bit
    return value if is_clock_of(value) else {}
