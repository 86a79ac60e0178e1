"""Stops one run on this node and proves that nothing is left of it; works with the supervisor and without it."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, Callable

from orchestrator.node import clock, ending, gpu_memory, processes, runfolder
from orchestrator.node.wire import Lines, Wire

Wanted = Callable[["dict[str, Any]"], bool]


def main(request: dict[str, Any], wire: Wire, modules: dict[str, str]) -> None:
    """Answer with the processes that were stopped, those that needed KILL, and those that survived."""
    del modules
    run_id, grace_s = request["run_id"], float(request["grace_s"])
    node_rank = request.get("node_rank")
    folders = runfolder.folders_of(run_id, os.path.expanduser("~"))
    if node_rank is not None:
        folders = [folder for folder in folders if os.path.basename(folder) == str(node_rank)]
    total: dict[str, Any] = {"found": bool(folders), "stopped": 0, "killed": 0, "survivors": []}
    recorded: list[list[int]] = []
    left_s = grace_s
    for folder in folders:
        status = runfolder.read_status(folder) or {}
        recorded += runfolder.recorded(status)
        if runfolder.supervisor_of(status) is not None:
            add(total, through_supervisor(folder, grace_s))
            left_s = 0.0  # what outlived that has had its grace
        # What it did not get to know of since its last record stands in the new one.
        recorded += runfolder.recorded(runfolder.read_status(folder) or {})
    left = ending.sweep(run_id, node_rank, recorded, left_s)
    total["found"] = total["found"] or left["stopped"] > 0
    add(total, left)
    word = {"ev": "final", "time": clock.now(), "reason": "kill", "killed": total["killed"]}
    gpus = {} if left["survivors"] else gpu_memory.after_sweep([runfolder.read_status(path) or {} for path in folders])
    word["state"] = ending.proved("killed", left["survivors"], gpus)
    for folder in folders:
        runfolder.note_final(folder, {**word, "survivors": left["survivors"], **gpus})
    wire.send({**total, **gpus})


def add(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the counts of one step."""
    for name in ("stopped", "killed"):
        total[name] += more[name]
    total["survivors"] = more["survivors"]


def through_supervisor(folder: str, grace_s: float) -> dict[str, Any]:
    """Let the supervisor stop its own tree and wait for its last word."""
    status = runfolder.read_status(folder) or {}
    stopped = len([1 for pid, ticks in runfolder.recorded(status) if processes.alive(pid, ticks)])
    supervisor = runfolder.supervisor_of(status)
    final = None
    if supervisor is not None and supervisor.state not in "Tt":  # one that was suspended answers nobody
        order = {"op": "stop", "grace_s": grace_s, "reason": "kill", "state": "killed"}
        limit_s = grace_s + ending.OVERDUE_S
        final = ask(folder, order, limit_s, lambda event: event["ev"] == "final") or final_of(folder)
    if final is not None:
        return {"stopped": stopped, "killed": final["killed"], "survivors": final["survivors"]}
    supervisor = runfolder.supervisor_of(status)
    if supervisor is None:
        return {"stopped": stopped, "killed": 0, "survivors": []}
    killed, survivors = ending.end_supervisor(supervisor)
    return {"stopped": stopped, "killed": killed, "survivors": ending.describe(survivors)}


def ask(folder: str, order: dict[str, Any], limit_s: float, wanted: Wanted) -> dict[str, Any] | None:
    """Send one order to a supervisor and wait for the event that answers it; None when it does not come."""
    os.chdir(folder)
    end = time.monotonic() + limit_s
    lines = Lines()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.settimeout(5.0)
            client.connect(runfolder.SOCKET)
            client.sendall(json.dumps(order).encode() + b"\n")
            while True:
                client.settimeout(max(0.01, end - time.monotonic()))
                data = client.recv(1 << 16)
                if not data:
                    return None
                for event in lines.feed(data):
                    if wanted(event):
                        return event
        except OSError:
            return None


def final_of(folder: str) -> dict[str, Any] | None:
    """Give the last word that stands in the status file."""
    status = runfolder.read_status(folder) or {}
    finals: list[dict[str, Any]] = [event for event in status.get("events", []) if event["ev"] == "final"]
    return finals[-1] if finals else None
