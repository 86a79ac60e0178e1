"""The rank hook beside the real torchrun and gloo: error files, stacks and flight recorders of ranks that know nothing of it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from cluster import wait_for

from orchestrator.diagnosis.hang.flight import parse_dump
from orchestrator.diagnosis.hang.stacks import parse_stack
from orchestrator.node import armed, clock, flight, processes, pyspy, rank_hook, runfolder, stacks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(200)]

PLAY = """
import sys, time
import torch
import torch.distributed as dist
import zlib


def fetch_shard():
    time.sleep(3600)


def mend_shard():
    raise ValueError("shard 7 is torn")


def train(rank):
    for turn in range(5):
        if turn == 3 and rank == 1:
            {"hang": fetch_shard, "fail": mend_shard}[sys.argv[1]]()
        dist.all_reduce(torch.ones(8))


torch.set_num_threads(1)
dist.init_process_group("gloo")
train(dist.get_rank())
"""


class Agent:
    """A torchrun of two ranks that was started as a supervisor with the rank hook starts it."""

    def __init__(self, folder: Path, trouble: str) -> None:
        self.folder = folder
        runfolder.make_run_folder(str(folder))
        (folder / "play.py").write_text(PLAY)
        env = rank_hook.put_in_front({**os.environ, "OMP_NUM_THREADS": "1"}, str(folder))
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--log-dir"]
        self.process = subprocess.Popen(
            [sys.executable, *words, str(folder / "ranks"), "--redirects", "3", str(folder / "play.py"), trouble],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_armed(self) -> list[dict[str, Any]]:
        """Wait until both ranks are armed; write them into the status file."""
        wait_for(lambda: len(self._ranks()) == 2, 60, "both ranks are armed")
        events = self._ranks()
        own = processes.read_process(os.getpid())
        assert own is not None
        identity = {"pid": own.pid, "ticks": own.ticks, "boot_id": processes.boot_id()}
        runfolder.write_status(str(self.folder), {"supervisor": identity, "events": events})
        return events

    def _ranks(self) -> list[dict[str, Any]]:
        marks = [armed.read_mark(str(self.folder), rank) for rank in range(2)]
        return [
            {"ev": "rank", "rank": rank, "local_rank": rank, "pid": mark.pid, "ticks": mark.ticks, "time": clock.now()}
            for rank, mark in enumerate(marks)
            if mark is not None
        ]

    def end(self) -> None:
        """Leave nothing behind."""
        for process in processes.descendants(self.process.pid):
            processes.send_signal(process, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_hanging_rank_and_the_one_that_waits_for_it_are_told_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspy, "find_pyspy", lambda *_: "")
    agent = Agent(folder, "hang")
    try:
        agent.wait_armed()

        def frames() -> list[list[str]]:
            told = stacks.take_stacks(str(folder), {})["ranks"]
            assert [one["how"] for one in told] == ["signal", "signal"]
            found = [parse_stack(one["text"], one["rank"], 0) for one in told]
            return [[frame.function for frame in stack.frames] if stack else [] for stack in found]

        wait_for(lambda: "fetch_shard" in frames()[1], 60, "rank 1 hangs")
        wait_for(lambda: "all_reduce" in frames()[0], 60, "rank 0 waits")
        answer = flight.take_dumps(str(folder), {})
        assert [(one["rank"], one["how"]) for one in answer["ranks"]] == [(0, "hook"), (1, "hook")], answer["why"]
        dumps = [parse_dump(zlib.decompress(base64.b64decode(one["data"])), one["rank"]) for one in answer["ranks"]]
        assert [max(dump.enqueued.values()) for dump in dumps if dump] == [4, 3]
        assert agent.process.poll() is None
    finally:
        agent.end()


@pytest.mark.long
def test_the_agent_reads_the_error_of_a_script_without_record(folder: Path) -> None:
    agent = Agent(folder, "fail")
    try:
        wait_for(lambda: agent.process.poll() is not None, 90, "the agent ends")
        files = [json.loads(path.read_text()) for path in folder.glob("ranks/**/error.json") if path.stat().st_size]
        messages = {one["message"]["message"] for one in files}
        assert "ValueError: shard 7 is torn" in messages
        assert agent.process.stderr is not None
        said = agent.process.stderr.read()
        assert "ValueError: shard 7 is torn" in said
        assert "To enable traceback" not in said
    finally:
        agent.end()
