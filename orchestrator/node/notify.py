"""Sends a signal to the ranks of one run on this node; the supervisor does it, who knows them."""

from __future__ import annotations

import os
from typing import Any

from orchestrator.node import runfolder
from orchestrator.node.kill import ask
from orchestrator.node.wire import Wire

ANSWER_S = 10.0


def main(request: dict[str, Any], wire: Wire, modules: dict[str, str]) -> None:
    """Answer with the ranks that took it."""
    del modules
    folders = runfolder.folders_of(request["run_id"], os.path.expanduser("~"))
    folders = [folder for folder in folders if os.path.basename(folder) == str(request["node_rank"])]
    taken: list[int] = []
    for folder in folders:
        supervisor = runfolder.supervisor_of(runfolder.read_status(folder) or {})
        if supervisor is None:
            continue
        if supervisor.state in "Tt":
            wire.send({"error": "its supervisor is suspended", "remedy": "kill -CONT %d there" % supervisor.pid})
            return
        own = "notify-%d" % os.getpid()
        order = {"op": "signal", "signal": request["signal"], "id": own}
        event = ask(folder, order, ANSWER_S, lambda event: event["ev"] == "signalled" and event.get("id") == own)  # noqa: B023 - asked at once
        if event is None and runfolder.supervisor_of(runfolder.read_status(folder) or {}) is None:
            continue  # it has ended meanwhile, and its ranks with it
        if event is None:
            wire.send({"error": "its supervisor does not answer within %.0f s" % ANSWER_S})
            return
        taken += event["ranks"]
    wire.send({"ranks": taken})
