"""Lists what lives of this user's runs on this node, from their folders and from the process table."""

from __future__ import annotations

import os
from typing import Any, Dict, Tuple

from orchestrator.node import processes, runfolder
from orchestrator.node.logfiles import listed
from orchestrator.node.wire import Wire

Key = Tuple[str, int]
"""Run id and node rank."""
DEAD_END = "supervisor gone"
"""The state of a run whose supervisor died before it could say one."""


def main(request: Dict[str, Any], wire: Wire, modules: Dict[str, str]) -> None:
    """Answer with one entry for each run and node rank that this machine has had since it booted."""
    del request, modules
    home = os.path.expanduser("~")
    found = read_folders(os.path.join(home, ".aorta", "runs"))
    add_marked(found)
    wire.send({"machine": machine_id(), "runs": [found[key] for key in sorted(found)]})


def machine_id() -> str:
    """Tell this machine from others: two lines of a node list may be one; containers of one kernel are several."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return "%s %s" % (processes.boot_id(), space)


def read_folders(root: str) -> Dict[Key, Dict[str, Any]]:
    """Read the run folders that were used on this machine; HOME may be shared with others."""
    found: Dict[Key, Dict[str, Any]] = {}
    for run_id in listed(root):
        for name in listed(os.path.join(root, run_id)):
            status = runfolder.read_status(os.path.join(root, run_id, name)) if name.isdigit() else None
            if status is None or not runfolder.is_of_this_boot(status):
                continue
            supervisor = runfolder.supervisor_of(status)
            left = runfolder.living(status)
            found[run_id, int(name)] = {
                "run_id": run_id,
                "node_rank": int(name),
                "live": supervisor is not None or bool(left),
                "state": str(status.get("state", "")) if supervisor or not left else DEAD_END,
                "started": min((event["time"] for event in status.get("events", [])), default=None),
                "nodes": None,
                "hosts": [],
            }
    return found


def add_marked(found: Dict[Key, Dict[str, Any]]) -> None:
    """Add what the environments of this user's processes tell: their run, and on how many nodes it is."""
    # A kill from inside a run is no part of the run.
    family = processes.line_of(os.getpid())
    for pid in processes.all_pids():
        environ = processes.environ_of(pid) if pid not in family else {}
        run_id, rank = environ.get(b"AORTA_RUN_ID"), environ.get(b"AORTA_NODE_RANK", b"")
        process = processes.read_process(pid) if run_id and rank.isdigit() else None
        if run_id is None or process is None or process.state in "ZX" or not processes.is_own(pid):
            continue
        key = (run_id.decode("utf-8", "replace"), int(rank))
        entry = found.setdefault(
            key, {"run_id": key[0], "node_rank": key[1], "state": DEAD_END, "started": None, "nodes": None, "hosts": []}
        )
        if not entry.get("live"):
            entry.update({"live": True, "state": DEAD_END})
        nodes = environ.get(b"AORTA_NNODES", b"")
        if nodes.isdigit():
            hosts = environ.get(b"AORTA_HOSTS", b"").decode("utf-8", "replace").split(",")
            entry.update({"nodes": int(nodes), "hosts": hosts})
