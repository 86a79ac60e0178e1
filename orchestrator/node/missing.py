"""What is said of a run that has no status file on this node."""

from __future__ import annotations

import os

from orchestrator.node import clock, processes
from orchestrator.node.wire import Wire


def tell(run_folder: str, run_id: str, wire: Wire) -> None:
    """Say that nothing of the run is here any more, or that it cannot be found."""
    if not os.path.isdir(run_folder) and not processes.marked(run_id):
        # Somebody has removed it, and waiting brings nothing back.
        wire.send({"t": "event", "ev": "vanished", "time": clock.now()})
        wire.send({"t": "end"})
        return
    wire.send({"error": f"no run in {run_folder}", "remedy": "it ran on another node, or its status file is broken"})
