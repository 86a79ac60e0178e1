"""Who uses a code folder, and who fills it: locks inside the folder, which the kernel takes back from whoever dies.

A launch that looks at the folder shares the lock PUSHING, one that fills it has it alone. Having found or made the
folder right, the launch leaves a ticket, `<run id>.<node rank>`; the supervisor holds a shared lock on its ticket for
as long as it lives. Whoever wants to fill the folder takes the tickets away that nobody holds and that are not waiting
for their supervisor, so that a supervisor whose ticket is gone knows that the code may be another's by now. LOCK is
held for moments, around each of these steps.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from orchestrator.node.tree_state import MARKER, MARKER_FOLDER, read_json

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any

USERS = os.path.join(MARKER_FOLDER, "users")
LOCK, PUSHING = ".lock", ".pushing"
LOCK_S = 10.0
"""For a step that takes moments."""
FILL_S = 2.0
"""For others of the same run, or of a launch that only looks, to let go."""
PAUSE_S = 0.02
OLD_TICKET_S = 86400.0
AWAITED_S = 20.0
"""From a new ticket to its supervisor."""
FRESH_NS = 1_000_000_000
HELD = b"held"
"""Stands in a ticket that had its supervisor."""
REFUSED = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class ChangedError(Exception):
    """Somebody else has taken the folder to fill it."""


def try_lock(handle: int, kind: int) -> bool:
    """Try to get a lock at once.

    Raises:
        OSError: this file system has no locks.
    """
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in REFUSED:
            return False
        raise
    return True


def open_lock(folder: str, name: str, flags: int = os.O_CREAT) -> int:
    """Open one of the files; nothing that is started inherits it, so that the lock ends with its holder."""
    return os.open(os.path.join(folder, name), os.O_RDWR | os.O_CLOEXEC | flags, 0o600)


class OneAtATime:
    """Lets nobody else look at the tickets meanwhile."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.handle = -1

    def __enter__(self) -> None:
        """Wait for the lock.

        Raises:
            OSError: this file system has no locks, or somebody stands still with this one.
        """
        self.handle = open_lock(self.folder, LOCK)
        try:
            got = self._wait()
        except BaseException:
            os.close(self.handle)
            raise
        if not got:
            os.close(self.handle)
            raise OSError(errno.ETIMEDOUT, "somebody holds it and stands still", os.path.join(self.folder, LOCK))

    def _wait(self) -> bool:
        end = time.monotonic() + LOCK_S
        while not try_lock(self.handle, fcntl.LOCK_EX):
            if time.monotonic() > end:
                return False
            time.sleep(PAUSE_S)
        return True

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


def read_filler(handle: int) -> str:
    """Give the id of the run whose launch fills the folder, or filled it last."""
    return os.pread(handle, 4096, 0).decode("utf-8", "replace").strip()


class Claim:
    """What one launch holds of the code folder on this node."""

    def __init__(self, workdir: str, run_id: str, node_rank: int) -> None:
        self.workdir = workdir
        self.run_id = run_id
        self.ticket = "%s.%d" % (run_id, node_rank)
        self.folder = os.path.join(workdir, USERS)
        self.handle = -1
        self.left = 0
        """When our ticket was left, in nanoseconds: another with its name is a later look's of the same launch."""
        self.marker: Any = None
        self.without = ""
        """Why nothing could be held; the launch goes on all the same."""

    def release(self) -> None:
        """Let go of the lock; the ticket stays."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def look(self) -> str | None:
        """Keep fillers away while we look; with one at work, give the id of its run."""
        self.release()
        if not os.path.isdir(os.path.join(self.workdir, MARKER_FOLDER)):
            return None  # nothing of ours: there is nobody to be kept away
        self.marker = read_json(os.path.join(self.workdir, MARKER))
        try:
            os.makedirs(self.folder, exist_ok=True)
            handle = open_lock(self.folder, PUSHING)
            if try_lock(handle, fcntl.LOCK_SH):
                self.handle = handle
                return None
            filler = read_filler(handle)
            os.close(handle)
        except OSError as error:
            self.without = describe(error, self.folder)
            return None
        return None if filler == self.run_id else filler

    def fill(self) -> dict[str, Any]:
        """Have the folder alone; else say who uses it (holders), who fills it or looks (busy), or that it changed."""
        self.release()
        end = time.monotonic() + FILL_S
        while True:
            try:
                os.makedirs(self.folder, exist_ok=True)
                with OneAtATime(self.folder):
                    answer = self._try_fill()
            except OSError as error:
                self.without = describe(error, self.folder)
                return {}
            if answer != {"busy": ""} or time.monotonic() > end:
                return answer
            time.sleep(PAUSE_S)

    def _try_fill(self) -> dict[str, Any]:
        handle = open_lock(self.folder, PUSHING)
        keep = False
        try:
            if not try_lock(handle, fcntl.LOCK_EX):
                looks = try_lock(handle, fcntl.LOCK_SH)
                filler = "" if looks else read_filler(handle)
                # Two nodes of one run may have one folder.
                return {} if filler == self.run_id else {"busy": filler}
            # First of all: a launch that has filled it since we looked, and begun, may have brought the very same code.
            if read_json(os.path.join(self.workdir, MARKER)) != self.marker:
                return {"changed": True}
            holders, awaited = self._drop_tickets()
            if holders or awaited:
                return {"holders": holders} if holders else {"busy": awaited[0]}
            os.ftruncate(handle, 0)
            os.pwrite(handle, self.run_id.encode(), 0)
            self.handle, keep = handle, True
            return {}
        finally:
            if not keep:
                os.close(handle)

    def _drop_tickets(self) -> tuple[list[str], list[str]]:
        """Take away the tickets of runs that are over; give the runs that hold theirs, and those about to start."""
        states: dict[str, set[str]] = {"held": set(), "awaited": set(), "gone": set()}
        for name in os.listdir(self.folder):
            run_id = name.rpartition(".")[0]
            if name not in (LOCK, PUSHING) and run_id != self.run_id:
                states[drop_free(self.folder, name)].add(run_id)
        return sorted(states["held"]), sorted(states["awaited"])

    def use(self) -> None:
        """Leave the ticket that the supervisor will hold."""
        if not os.path.isdir(self.folder):
            return
        try:
            with OneAtATime(self.folder):
                handle = open_lock(self.folder, self.ticket)
                os.utime(handle)
                self.left = os.fstat(handle).st_mtime_ns
                os.close(handle)
                for name in os.listdir(self.folder):
                    age_s = time.time() - os.stat(os.path.join(self.folder, name)).st_mtime
                    if age_s > OLD_TICKET_S and name not in (LOCK, PUSHING):
                        drop_free(self.folder, name)
        except OSError as error:
            self.without = describe(error, self.folder)

    def renew(self) -> None:
        """Let the time begin anew in which the supervisor is awaited: the checks may have taken long since we looked."""
        if self.left and time.time_ns() - self.left > FRESH_NS:
            self.use()

    def withdraw(self) -> None:
        """Take the ticket back: nothing will be started."""
        if not self.left:
            return
        path = os.path.join(self.folder, self.ticket)
        try:
            with OneAtATime(self.folder):
                if os.stat(path).st_mtime_ns == self.left:
                    os.unlink(path)
        except OSError:
            pass


def drop_free(folder: str, name: str) -> str:
    """Remove a ticket that nobody holds or waits for; say whether it is held, awaited or gone."""
    try:
        handle = open_lock(folder, name, 0)
    except FileNotFoundError:
        return "gone"
    try:
        if not try_lock(handle, fcntl.LOCK_EX):
            return "held"
        state = os.fstat(handle)
        if not state.st_size and abs(time.time() - state.st_mtime) < AWAITED_S:
            return "awaited"
        os.unlink(os.path.join(folder, name))
        return "gone"
    finally:
        os.close(handle)


def hold(workdir: str, run_id: str, node_rank: int) -> int:
    """Hold the ticket of a run as long as this process lives; -1 where that is not possible or not needed.

    Raises:
        ChangedError: it was taken away, so the code is perhaps no more what was brought.
    """
    folder, name = os.path.join(workdir, USERS), "%s.%d" % (run_id, node_rank)
    if not os.path.isdir(folder):
        return -1
    try:
        with OneAtATime(folder):
            try:
                handle = open_lock(folder, name, 0)
            except FileNotFoundError:
                # Where we could have none, nobody has taken it away.
                handle = open_lock(folder, name)
                os.unlink(os.path.join(folder, name))
                os.close(handle)
                handle = -1
            if handle >= 0:
                try_lock(handle, fcntl.LOCK_SH)
                os.pwrite(handle, HELD, 0)
                return handle
            filler = read_filler(open_lock(folder, PUSHING))
    except OSError:
        return -1
    raise ChangedError(
        "the code in %s was changed by the launch %s after it had been brought there" % (workdir, filler)
    )


def describe(error: OSError, folder: str) -> str:
    """Say why there is no lock."""
    return "%s: %s" % (error.filename or folder, error.strerror)
