"""Tells how one run stands on this node: its supervisor, its agent, its ranks with their last words, its GPUs."""

from __future__ import annotations

import glob
import os
import time

from orchestrator.node import clock, command, progress, runfolder
from orchestrator.node.gpu_use import GpuQuestion, key_of
from orchestrator.node.processes import alive

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    Facts = Dict[str, Any]

TAIL = 1 << 14
"""Bytes at the end of a rank's file that are looked at."""


def build_report(folder: str, gpus: bool = True) -> Facts:  # noqa: FBT001, FBT002 - a plain word of the request
    """Build the report of a run folder; waits for the driver's tool, but never longer than its limit."""
    job = ReportJob(folder, gpus=gpus)
    while True:
        report = job.done()
        if report is not None:
            return report
        time.sleep(0.01)


class ReportJob:
    """A report in the making: `done` gives it once the driver's tool has answered, and never waits."""

    def __init__(self, folder: str, *, gpus: bool = True) -> None:
        self._folder = folder
        self._used = (runfolder.read_status(folder) or {}).get("gpu_memory")
        # A run that is known to use no GPU asks for none.
        self._question = GpuQuestion() if gpus and self._used != {} else None

    def done(self) -> Optional[Facts]:
        """Give the report, or None while the tool is at work."""
        answer: Facts = {"gpus": [], "why": ""}
        if self._question is not None:
            told = self._question.poll()
            if told is None:
                return None
            answer = told
        status = runfolder.read_status(self._folder)
        if status is None:
            return {"error": f"no run in {self._folder}"}
        return {**report_of(self._folder, status), **gpus_of(answer, self._used)}

    def close(self) -> None:
        """Ask no more."""
        if self._question is not None:
            self._question.close()


def report_of(folder: str, status: Facts) -> Facts:
    """Tell what the status file, the process table and the ranks' files say."""
    here = runfolder.is_of_this_boot(status)
    supervisor = runfolder.supervisor_of(status)
    final: Facts = next((event for event in reversed(status.get("events", [])) if event["ev"] == "final"), {})
    agent = status.get("agent")
    tree = runfolder.living(status)
    return {
        "node_rank": status.get("node_rank"),
        "attempt": status.get("attempt"),
        "state": status.get("state", ""),
        "reason": status.get("reason", ""),
        "ended": bool(final),
        "rebooted": not here,
        "supervisor": {
            "pid": (status.get("supervisor") or {}).get("pid"),
            "alive": supervisor is not None,
            "suspended": supervisor is not None and supervisor.state in "Tt",
        },
        "heartbeat_age_s": heartbeat_age_s(status) if here else None,
        "agent": agent if any(pid == agent for pid, _ in tree) else None,
        "processes": len(tree),
        "ranks": [rank_of(folder, status, event, here) for event in last_ranks(status)],
        "survivors": final.get("survivors", []),
        "gpus_held": final.get("gpus") or [],
        "punched": status.get("punched") or {},
    }


def heartbeat_age_s(status: Facts) -> Optional[float]:
    """Give the seconds since the supervisor last wrote its status, by this node's uptime: its date may jump."""
    if "uptime_s" not in status:
        return None
    return round(max(0.0, clock.uptime_s() - float(status["uptime_s"])), 1)


def last_ranks(status: Facts) -> List[Facts]:
    """List the events that told of a rank, by rank; where a command has shown none, it stands for one itself."""
    ranks = {event["rank"]: event for event in status.get("events", []) if event["ev"] == "rank"}
    return [ranks[rank] for rank in sorted(ranks)] or command.list_stand_ins(status.get("events", []))


def rank_of(folder: str, status: Facts, event: Facts, here: bool) -> Facts:  # noqa: FBT001 - of this boot
    """Tell how one rank stands, and its last words."""
    own = {"ev": "agent_exit"} if event["ev"] == "agent" else {"ev": "rank_exit", "rank": event["rank"]}
    exits = [other for other in status["events"] if own.items() <= other.items()]
    runs = not exits and here and alive(event["pid"], event["ticks"])
    told = exits[-1] if exits else {}
    lines = read_tail(folder, status, event["local_rank"])
    return {
        "rank": event["rank"],
        "local_rank": event["local_rank"],
        "pid": event["pid"],
        "state": "running" if runs else "exited",
        "code": told.get("code"),
        "signal": told.get("signal"),
        "last_line": progress.last_line(lines),
        "step": progress.parse_step(lines),
    }


def read_tail(folder: str, status: Facts, local_rank: int) -> List[str]:
    """Read the last lines of a rank: of its output, or of its complaints where there is none."""
    place = f"{status.get('run_id')}.a{status.get('attempt')}_*"
    for name in ("stdout.log", "stderr.log"):
        pattern = os.path.join(glob.escape(folder), "ranks", place, "*", str(local_rank), name)
        for path in sorted(glob.glob(pattern)):
            lines = progress.read_lines(tail_of(path))
            if lines:
                return lines
    return []


def tail_of(path: str) -> bytes:
    """Read the end of a file that may be any size, or gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(handle, TAIL, max(0, os.fstat(handle).st_size - TAIL))
    except OSError:
        return b""
    finally:
        os.close(handle)


def gpus_of(answer: Facts, used: Optional[Facts]) -> Facts:
    """Pick the GPUs that the run uses out of what the tool told of; all of them where that is not known."""
    found = answer["gpus"]
    if found is not None:
        ours = [gpu for gpu in found if used and key_of(gpu) in used]
        found = [
            {name: gpu[name] for name in ("index", "used_mib", "total_mib", "util_percent")} for gpu in ours or found
        ]
    return {"gpus": found, "gpus_why": answer["why"]}
