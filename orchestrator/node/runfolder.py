"""The run folder of one run on this node: what lies where, and the status file that others read."""

from __future__ import annotations

import os
import time

from orchestrator.node import clock, processes
from orchestrator.node.fastjson import dumps, loads

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any

STATUS = "status.json"
SOCKET = "s"
PROTOCOL = 1
PASSING = ("prepared", "starting", "running", "stopping")
FULL_BYTES = 1 << 16
"""Less than this is no space."""


def make_run_folder(path: str) -> None:
    """Create the run folder for this user alone."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    os.chmod(path, 0o700)
    for name in ("ranks", "outputs", "diagnosis"):
        os.makedirs(os.path.join(path, name), mode=0o700, exist_ok=True)


def write_status(path: str, status: dict[str, Any]) -> bool:
    """Replace the status file in one step; a full disk costs the news (False), not the run."""
    # The age of a heartbeat is told by the uptime: the date may jump.
    text = dumps({**status, "protocol": PROTOCOL, "heartbeat": time.time(), "uptime_s": clock.uptime_s()})
    # Named by who writes: a kill writes the last word of a supervisor that it takes for dead.
    temporary = os.path.join(path, "%s.new.%d" % (STATUS, os.getpid()))
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            if status.get("state", PASSING[0]) not in PASSING:
                # How it ended has to outlive a power cut; not more often, a slow disk would hold us up.
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, os.path.join(path, STATUS))
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        return False
    return True


def read_status(path: str) -> dict[str, Any] | None:
    """Read the status file; None when there is none that can be read."""
    try:
        with open(os.path.join(path, STATUS), encoding="utf-8") as file:
            status: dict[str, Any] = loads(file.read())
    except (OSError, ValueError):
        return None
    return status


def note_final(path: str, event: dict[str, Any]) -> None:
    """Write the last word for a supervisor that cannot say it any more."""
    status = read_status(path)
    if status is None or any(told["ev"] == "final" for told in status.get("events", [])):
        return
    events = [*status.get("events", []), event]
    write_status(path, {**status, "state": event["state"], "reason": event["reason"], "events": events})


def is_full(path: str) -> bool:
    """Tell whether the file system of a folder takes nothing more."""
    try:
        system = os.statvfs(path)
    except OSError:
        return False
    return system.f_bavail * system.f_frsize < FULL_BYTES or (system.f_files > 0 and system.f_favail == 0)


def is_of_this_boot(status: dict[str, Any]) -> bool:
    """Tell whether a status file was written on this machine and since this boot."""
    return bool((status.get("supervisor") or {}).get("boot_id") == processes.boot_id())


def recorded(status: dict[str, Any]) -> list[list[int]]:
    """List pid and start ticks of all that a supervisor knew below it; nothing where they were of an earlier boot."""
    if not is_of_this_boot(status):
        return []
    # A rank is told of when it is found; the whole tree is written down once a second.
    ranks = [[event["pid"], event["ticks"]] for event in status.get("events", []) if event["ev"] == "rank"]
    return [*status.get("tree", []), *(rank for rank in ranks if rank not in status.get("tree", []))]


def living(status: dict[str, Any]) -> list[list[int]]:
    """List pid and start ticks of what lives of all that a supervisor knew below it."""
    return [[pid, ticks] for pid, ticks in recorded(status) if processes.alive(pid, ticks)]


def supervisor_of(status: dict[str, Any]) -> processes.Process | None:
    """Give the supervisor of a status file if it lives, on this machine and since this boot."""
    if not is_of_this_boot(status):
        return None
    who = status["supervisor"]
    process = processes.read_process(int(who.get("pid", 0)))
    if process is None or process.ticks != who.get("ticks") or process.state in "ZX":
        return None
    return process


def folders_of(run_id: str, home: str) -> list[str]:
    """List the run folders of a run that belong to this machine; HOME may be shared with other nodes."""
    root = os.path.join(home, ".aorta", "runs", run_id)
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return []
    folders = [os.path.join(root, name) for name in names if name.isdigit()]
    return [folder for folder in folders if _stands_here(folder)]


def _stands_here(folder: str) -> bool:
    status = read_status(folder)
    return status is not None and is_of_this_boot(status)
