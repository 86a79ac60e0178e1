"""The run folder of one run on this node: what lies where, and the status file that others read."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from orchestrator.node import processes

STATUS = "status.json"
SOCKET = "s"
PROTOCOL = 1


def make_run_folder(path: str) -> None:
    """Create the run folder for this user alone."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    os.chmod(path, 0o700)
    for name in ("ranks", "outputs"):
        os.makedirs(os.path.join(path, name), mode=0o700, exist_ok=True)


def write_status(path: str, status: dict[str, Any]) -> None:
    """Replace the status file in one step; a full disk costs the news, not the run."""
    text = json.dumps({**status, "protocol": PROTOCOL, "heartbeat": time.time()})
    temporary = os.path.join(path, STATUS + ".new")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, os.path.join(path, STATUS))
    except OSError:
        return


def read_status(path: str) -> dict[str, Any] | None:
    """Read the status file; None when there is none that can be read."""
    try:
        with open(os.path.join(path, STATUS), encoding="utf-8") as file:
            status: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    return status


def is_of_this_boot(status: dict[str, Any]) -> bool:
    """Tell whether a status file was written on this machine and since this boot."""
    return bool((status.get("supervisor") or {}).get("boot_id") == processes.boot_id())


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
