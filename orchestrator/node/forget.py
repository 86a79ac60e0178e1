"""Measures the run folders of old runs on this node, and removes them; never those of a run of which something lives."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from typing import Any

from orchestrator.node import processes, runfolder
from orchestrator.node.wire import Wire

RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
FRESH_S = 60.0
"""A supervisor that wrote its status so short a time ago may live, on another machine with the same HOME."""
BLOCK = 512
"""Bytes of one st_blocks."""


class RefusedError(Exception):
    """A run folder that is not what it should be; it is left."""


def main(request: dict[str, Any], wire: Wire, modules: dict[str, str]) -> None:
    """Answer with one line a run: what lives of it, what its folder holds, whether it was removed."""
    del modules
    root = os.path.join(os.path.expanduser("~"), ".aorta", "runs")
    marks = find_marks()
    runs = []
    for run_id, node_rank in request["runs"]:
        runs.append(look_at(root, str(run_id), int(node_rank), marks, remove=bool(request["remove"])))
        # A node with a hundred runs of a million files each is at work, not silent.
        wire.send({"t": "run", **runs[-1]})
    wire.send({"t": "end"})


def look_at(root: str, run_id: str, node_rank: int, marks: dict[bytes, list[int]], *, remove: bool) -> dict[str, Any]:
    """Look at one run's folder on this node, and remove it where that is asked and nothing of the run lives."""
    told: dict[str, Any] = {"run_id": run_id, "node_rank": node_rank, "found": False, "bytes": 0, "files": 0}
    told.update({"living": "", "removed": False, "fault": ""})
    try:
        folder = find_folder(root, run_id, node_rank)
        told["found"] = bool(folder)
        told["living"] = find_life(run_id, folder, marks)
        if folder and not told["living"]:
            told["bytes"], told["files"] = measure(folder)
            if remove:
                remove_tree(folder, runfolder.STATUS)
                forget_empty(os.path.dirname(folder))
        told["removed"] = remove and not told["living"]
    except RefusedError as error:
        told["fault"] = str(error)
    except OSError as error:
        told["fault"] = f"{error.filename or run_id}: {error.strerror}"
    return told


def find_folder(root: str, run_id: str, node_rank: int) -> str:
    """Give the run folder, empty when there is none; a link in its place leads somewhere else and is refused."""
    if not RUN_ID.fullmatch(run_id):
        raise RefusedError(f"{run_id!r} is no run id")
    path = root
    for name in (run_id, str(node_rank)):
        path = os.path.join(path, name)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return ""
        if not stat.S_ISDIR(mode):
            raise RefusedError(f"{path} is no folder: left as it is")
    return path


def find_marks() -> dict[bytes, list[int]]:
    """Find the living processes that carry a run's id, by id: one look at the table for all runs."""
    found: dict[bytes, list[int]] = {}
    own = os.getpid()
    for pid in processes.all_pids():
        run_id = processes.environ_of(pid).get(b"AORTA_RUN_ID") if pid != own else None
        if run_id:
            process = processes.read_process(pid)
            if process is not None and process.state not in "ZX":
                found.setdefault(run_id, []).append(pid)
    return found


def find_life(run_id: str, folder: str, marks: dict[bytes, list[int]]) -> str:
    """Say what lives of a run on this node; empty when nothing does."""
    marked = marks.get(run_id.encode(), [])
    if marked:
        return f"pid {marked[0]}  {processes.command_of(marked[0])}"
    status = (runfolder.read_status(folder) if folder else None) or {}
    supervisor = runfolder.supervisor_of(status)
    if supervisor is not None:
        return f"its supervisor, pid {supervisor.pid}"
    if runfolder.is_of_this_boot(status):
        alive = runfolder.living(status)
        if alive:
            return f"pid {alive[0][0]}  {processes.command_of(alive[0][0])}"
    elif abs(time.time() - float(status.get("heartbeat", 0))) < FRESH_S and not ended(status):
        return f"its supervisor wrote {os.path.join(folder, runfolder.STATUS)} within the last {FRESH_S:g} s"
    return "its supervisor holds its lock" if folder and is_locked(folder) else ""


def ended(status: dict[str, Any]) -> bool:
    """Tell whether a supervisor has said its last word."""
    return any(event.get("ev") == "final" for event in status.get("events", []))


def is_locked(folder: str) -> bool:
    """Tell whether somebody holds the lock of a run folder, also from another machine."""
    try:
        handle = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def measure(folder: str) -> tuple[int, int]:
    """Count the bytes on disk and the files below a folder; links are counted, not followed.

    Raises:
        RefusedError: another file system is mounted in it, and what lies there is not the run's.
    """
    top = os.lstat(folder)
    total, files = top.st_blocks * BLOCK, 0
    seen: set[int] = set()
    stack = [folder]
    while stack:
        for entry in list_folder(stack.pop()):
            info = entry.stat(follow_symlinks=False)
            if info.st_dev != top.st_dev:
                raise RefusedError(f"another file system is mounted at {entry.path}: left as it is")
            if stat.S_ISDIR(info.st_mode):
                stack.append(entry.path)
            else:
                files += 1
            if info.st_ino not in seen:
                total += info.st_blocks * BLOCK
            if info.st_nlink > 1:
                seen.add(info.st_ino)
    return total, files


def remove_tree(folder: str, last: str) -> None:
    """Remove a folder with all below it, links as links; by the file that goes last a broken end can be gone on with."""
    unlock(folder)
    for entry in list_folder(folder):
        if entry.name == last:
            continue
        if entry.is_dir(follow_symlinks=False):
            remove_below(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)
    remove_below(folder)
    os.rmdir(folder)


def remove_below(folder: str) -> None:
    """Empty a folder; one level of calls a level of folders would end at a thousand."""
    stack = [folder]
    while stack:
        path = stack[-1]
        unlock(path)
        below = []
        for entry in list_folder(path):
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
            else:
                os.unlink(entry.path)
        if below:
            stack += below
        elif path != folder:
            os.rmdir(path)
            stack.pop()
        else:
            stack.pop()


def list_folder(path: str) -> list[os.DirEntry[str]]:
    """List a folder; one that lets nobody in looks empty."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except PermissionError:
        return []


def unlock(folder: str) -> None:
    """Let ourselves into a folder that a rank has closed for its user."""
    mode = os.lstat(folder).st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(folder, stat.S_IMODE(mode) | stat.S_IRWXU)


def forget_empty(folder: str) -> None:
    """Remove the run's own folder once the last node rank in it is gone; others may share HOME."""
    try:
        os.rmdir(folder)
    except OSError:
        return
