"""Processes of earlier runs that are still here, and ranks of torchruns that we did not start.

Ours are known by AORTA_RUN_ID in their environment, the others by what torchrun gives to its ranks.
"""

from __future__ import annotations

import os

from orchestrator.node import probe_work, processes

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Set

    Facts = Dict[str, Any]

NAME = b"AORTA_RUN_ID"
TORCHRUN = b"TORCHELASTIC_RUN_ID"
STRANGERS_LIMIT = 64


def probe_leftovers(request: Facts) -> Facts:
    """List this user's processes that carry a run id, and whether that run's supervisor lives; then the strangers."""
    del request
    home = os.path.expanduser("~")
    marked: Dict[int, str] = {}
    strangers: Dict[int, str] = {}
    for pid in probe_work.list_users():
        environ = processes.environ_of(pid) if processes.is_own(pid) else {}
        if NAME in environ:
            marked[pid] = environ[NAME].decode("utf-8", "replace")
        elif TORCHRUN in environ and b"RANK" in environ:
            strangers[pid] = environ[b"RANK"].decode("utf-8", "replace")
    own = _own_family({*marked, *strangers})
    supervised: Dict[str, bool] = {run_id: supervisor_lives(run_id, home) for run_id in set(marked.values())}
    leftovers: List[Facts] = [
        {"pid": pid, "run_id": run_id, "command": processes.command_of(pid), "supervised": supervised[run_id]}
        for pid, run_id in sorted(marked.items())
        if pid not in own
    ]
    others: List[Facts] = [
        {"pid": pid, "rank": rank, "command": processes.command_of(pid)}
        for pid, rank in sorted(strangers.items())
        if pid not in own
    ]
    return {"leftovers": leftovers, "project": {"strangers": others[:STRANGERS_LIMIT]}}


def _own_family(pids: Set[int]) -> Set[int]:
    """Find among them this probe, what it started and what started it: a launch from inside a run is no leftover."""
    if not pids:
        return set()
    me = os.getpid()
    above = set(processes.line_of(me))
    return {pid for pid in pids if pid in above or me in processes.line_of(pid)}


def supervisor_lives(run_id: str, home: str) -> bool:
    """Tell whether a status file of this run names a supervisor that lives here."""
    from orchestrator.node import runfolder  # noqa: PLC0415 - only where something was left

    for folder in runfolder.folders_of(run_id, home):
        status = runfolder.read_status(folder)
        if status is not None and runfolder.supervisor_of(status) is not None:
            return True
    return False
