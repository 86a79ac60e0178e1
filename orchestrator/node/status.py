"""Answers how one run stands on this node; asks its files and the process table, and needs no supervisor."""

from __future__ import annotations

import os
from typing import Any, Dict

from orchestrator.node import report, runfolder
from orchestrator.node.wire import Wire


def main(request: Dict[str, Any], wire: Wire, modules: Dict[str, str]) -> None:
    """Answer with the report of a run folder; request: {"run_folder"} or {"run_id", "node_rank"}."""
    del modules
    folder = request.get("run_folder") or os.path.join(
        os.path.expanduser("~"), ".aorta", "runs", request["run_id"], str(request["node_rank"])
    )
    if not os.path.isdir(folder):
        # It was not started here yet, or was pruned: the node is well, and there is nothing to report.
        wire.send({"found": False})
        return
    if runfolder.read_status(folder) is None:
        wire.send({"error": f"no status can be read in {folder}", "remedy": "is its disk full, or was the power cut?"})
        return
    wire.send(report.build_report(folder))
