"""A launch that runs, as a user can see it: its screen, its experiment directory, its process."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .nodes import Nodes
from .timing import BenchError, Ran, Running
from .tools import aorta

POLL_S = 0.02
_numbers = itertools.count()


class Launch:
    """`aorta-launch` with an experiment directory of its own."""

    def __init__(self, nodes: Nodes, words: Sequence[str | Path], *, real: bool = False) -> None:
        node_list = nodes.write_list("real.txt" if real else "nodes.txt", real=real)
        self._folder = nodes.project.parent / "experiments" / str(next(_numbers))
        flags = ("--nodes", node_list, "--fanout", str(nodes.count), "--experiments-dir", self._folder)
        self.running: Running = nodes.start(aorta("launch", *flags, *words))

    @property
    def experiment(self) -> Path:
        """Its experiment directory; waits for it."""
        self.wait_for(lambda: bool(list(self._folder.glob("*/run.json"))), 60, "an experiment directory")
        (path,) = self._folder.glob("*")
        return path

    @property
    def run_id(self) -> str:
        """Its name."""
        return self.experiment.name

    def read_timings(self) -> Mapping[str, float]:
        """When each phase was over, in seconds since the epoch."""
        timings = json.loads((self.experiment / "run.json").read_text())["timings"]
        return {phase: datetime.fromisoformat(moment).timestamp() for phase, moment in timings.items()}

    def read_events(self, kind: str) -> list[dict[str, Any]]:
        """What it has recorded of one kind."""
        path = self.experiment / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def wait_for(self, condition: Callable[[], bool], deadline_s: float, what: str) -> float:
        """Wait until a condition holds, and give the moment; fail at once when the launch ends without."""
        end = time.monotonic() + deadline_s
        while not condition():
            ended = self.running.process.returncode is not None or not Path(f"/proc/{self.running.pid}/fd/1").exists()
            if time.monotonic() > end or (ended and not condition()):
                raise BenchError(f"no {what} from a launch: {self.running.stderr[-4000:]}")
            time.sleep(POLL_S)
        return time.time()

    def wait_for_text(self, text: str, deadline_s: float = 120) -> float:
        """Wait until it has said something, and give the moment."""
        return self.wait_for(lambda: text in self.running.stderr, deadline_s, repr(text))

    def wait(self, expected: int = 0, timeout_s: float = 120) -> Ran:
        """Wait for its end, with the exit code that it should have."""
        return self.running.wait(timeout_s).check(expected)


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str) -> float:
    """Wait until a condition holds, and give the moment."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise BenchError(f"not within {deadline_s:g} s: {what}")
        time.sleep(POLL_S)
    return time.time()
