"""A run on this machine as on a node: the real supervisor and its pump, over a made-up agent whose ranks need no torch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from orchestrator.node import processes, runfolder
from orchestrator.plan.environment import CLEARED
from orchestrator.transport import Channel, Frame
from orchestrator.transport.cargo import list_supervisors
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node

AGENT = """
import os, subprocess, sys, time
env = {**os.environ, "WORLD_SIZE": str(len(sys.argv) - 1), "TORCHELASTIC_RUN_ID": "run"}
ranks = [
    subprocess.Popen([sys.executable, "-c", text], env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})
    for rank, text in enumerate(sys.argv[1:])
]
while all(rank.poll() is None for rank in ranks):
    time.sleep(0.1)
codes = [rank.poll() for rank in ranks]
if any(codes):
    for rank in ranks:
        rank.terminate()
for rank in ranks:
    rank.wait()
sys.exit(1 if any(codes) else 0)
"""
"""Starts a rank for each program and does as torchrun does: it looks ten times a second, and ends all when one fails."""
SLEEP = "import time; time.sleep(600)"


class LiveNode:
    """One node's part of a run; whatever happens, nothing of it is left."""

    def __init__(self, folder: Path, *ranks: str, **order: Any) -> None:
        """Prepare a run of these programs; nothing runs before `go`."""
        self.folder = folder / "run"
        self.frames: list[Frame] = []
        self.pump_ended = False
        self.channel: Channel = LocalLink(Node(name="here", host="127.0.0.1")).open(
            "start",
            {
                "run_id": f"test-{folder.name}",
                "attempt": 1,
                "node_rank": 0,
                "run_folder": str(self.folder),
                "workdir": str(folder),
                "processes": len(ranks),
                "gpu_memory": {},
                "grace_s": 5.0,
                "argv": [sys.executable, "-c", AGENT, *ranks],
                "env": {"AORTA_RUN_ID": f"test-{folder.name}", "AORTA_NODE_RANK": "0"},
                "cleared": list(CLEARED),
                "supervisor": list_supervisors(),
                **order,
            },
        )
        self.wait(lambda: any(frame.header.get("t") == "ready" for frame in self.frames))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        status = runfolder.read_status(str(self.folder)) or {}
        known = [processes.read_process(pid) for pid, _ in runfolder.living(status)]
        supervisor = runfolder.supervisor_of(status)
        # What came in this second stands in no status yet.
        below = processes.descendants(supervisor.pid) if supervisor else []
        for found in (supervisor, *below, *known):
            if found is not None:
                processes.send_signal(found, 9)

    def send(self, op: str, **order: Any) -> None:
        self.channel.send({"op": op, **order})

    def wait(self, condition: Callable[[], Any], deadline_s: float = 30.0) -> Any:
        """Take what the pump says until something is true; give it."""
        end = time.monotonic() + deadline_s
        while not (found := condition()):
            assert time.monotonic() < end, [frame.header for frame in self.frames]
            if self.pump_ended:
                time.sleep(0.01)
                continue
            try:
                frame = self.channel.read(0.05)
            except TimeoutError:
                continue
            self.pump_ended = frame is None
            if frame is not None:
                assert "error" not in frame.header, frame
                self.frames.append(frame)
        return found

    def event(self, kind: str) -> dict[str, Any]:
        """Wait for an event of this kind."""
        return dict(self.wait(lambda: next((f.header for f in self.frames if f.header.get("ev") == kind), None)))

    def ranks(self) -> list[dict[str, Any]]:
        """Give the ranks that were told of."""
        return [dict(frame.header) for frame in self.frames if frame.header.get("ev") == "rank"]

    def answer(self, name: str) -> dict[str, Any]:
        """Wait for the answer to an order that has this id."""

        def find() -> Any:
            named = [f for f in self.frames if f.header.get("id") == name and f.header.get("t") == "answer"]
            return named[0].body if named else None

        return dict(json.loads(self.wait(find)))
