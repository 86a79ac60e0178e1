"""Ranks that are one real process each, in a run folder without an agent, a supervisor or torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from orchestrator.node import armed, clock, processes, rank_hook, runfolder
from orchestrator.node.stacks import state_of

STUCK = """import threading
def wait_for_ever():
    lock = threading.Lock(); lock.acquire()
    print("here", flush=True)
    lock.acquire()
wait_for_ever()
"""
"""A program that says when its main thread comes to wait in a lock."""


def wait_for(condition: Callable[[], object], deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class RankRoom:
    """A run folder and the ranks that were started in it; ends them when it is left."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "run"
        runfolder.make_run_folder(str(self.folder))
        self.started: list[subprocess.Popen[str]] = []
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            process.kill()
            process.communicate()

    def env(self, rank: int = 0, *, hook: bool = True, **more: str) -> dict[str, str]:
        """Build what an agent of a run with the rank hook gives to a rank."""
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": "run"}
        env |= {"WORLD_SIZE": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}
        return rank_hook.put_in_front(env, str(self.folder)) if hook else env

    def start(self, *words: str, rank: int = 0, hook: bool = True, **more: str) -> subprocess.Popen[str]:
        """Start a rank, by its words or as a Python program, and write it into the status file."""
        argv = words if len(words) > 1 else (sys.executable, "-c", *words)
        process = subprocess.Popen(
            argv, env=self.env(rank, hook=hook, **more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        # The kernel has no environment of it for a moment while one program replaces the other.
        wait_for(lambda: b"RANK" in processes.environ_of(process.pid))
        found = processes.read_process(process.pid)
        assert found is not None
        event = {"ev": "rank", "rank": rank, "local_rank": rank, "pid": process.pid, "ticks": found.ticks}
        self.events.append({**event, "time": clock.now()})
        own = processes.read_process(os.getpid())
        assert own is not None
        identity = {"pid": own.pid, "ticks": own.ticks, "boot_id": processes.boot_id()}
        runfolder.write_status(str(self.folder), {"supervisor": identity, "events": self.events})
        return process

    def wait_here(self, place: int = 0) -> None:
        """Wait until a STUCK rank has come to its lock.

        Not by looks, again and again: a Python that is busy dies of one dump in some ten thousand (python/cpython#116008).
        """
        output = self.started[place].stdout
        assert output is not None
        assert output.readline() == "here\n"
        wait_for(lambda: state_of(self.started[place].pid) == "S")

    def wait_armed(self, rank: int = 0) -> None:
        """Wait until the hook has armed a rank, which is before its program has run a line."""
        wait_for(lambda: armed.find_armed(str(self.folder), self.events[rank]))
