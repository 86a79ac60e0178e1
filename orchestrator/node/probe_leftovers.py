"""Processes of earlier runs that are still here, known by AORTA_RUN_ID in their environment."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Set

from orchestrator.node import processes, runfolder

Facts = Dict[str, Any]
NAME = b"AORTA_RUN_ID"


def probe_leftovers(request: Facts) -> Facts:
    """List this user's processes that carry a run id, and whether that run's supervisor lives."""
    del request
    home = os.path.expanduser("~")
    marked: Dict[int, str] = {}
    for pid in processes.all_pids():
        run_id = _run_id(pid)
        if run_id:
            marked[pid] = run_id
    own = _own_family(set(marked))
    supervised: Dict[str, bool] = {run_id: supervisor_lives(run_id, home) for run_id in set(marked.values())}
    leftovers: List[Facts] = [
        {"pid": pid, "run_id": run_id, "command": processes.command_of(pid), "supervised": supervised[run_id]}
        for pid, run_id in sorted(marked.items())
        if pid not in own
    ]
    return {"leftovers": leftovers}


def _run_id(pid: int) -> str:
    try:
        if os.stat("/proc/%d" % pid).st_uid != os.getuid():
            return ""
    except OSError:
        return ""
    return processes.environ_of(pid).get(NAME, b"").decode("utf-8", "replace")


def _own_family(pids: Set[int]) -> Set[int]:
    """Find among them this probe, what it started and what started it: a launch from inside a run is no leftover."""
    me = os.getpid()
    above = set(_line_of(me))
    return {pid for pid in pids if pid in above or me in _line_of(pid)}


def _line_of(pid: int) -> List[int]:
    """Give a process and those above it, the nearest first."""
    line: List[int] = []
    while pid > 1 and pid not in line:
        line.append(pid)
        process = processes.read_process(pid)
        pid = 0 if process is None else process.ppid
    return line


def supervisor_lives(run_id: str, home: str) -> bool:
    """Tell whether a status file of this run names a supervisor that lives here."""
    for folder in runfolder.folders_of(run_id, home):
        status = runfolder.read_status(folder)
        if status is not None and runfolder.supervisor_of(status) is not None:
            return True
    return False
