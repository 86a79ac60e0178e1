"""The report of a run folder: made up files, real processes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ranks_alone import wait_for

from orchestrator.node import clock, forget, processes, report, runfolder, runs

BIN = "nvidia-smi"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver's tool, found before any real one; it answers with what is written into it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / BIN


def write_tool(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def identity(pid: int) -> dict[str, Any]:
    process = processes.read_process(pid)
    assert process is not None
    return {"pid": pid, "ticks": process.ticks, "boot_id": processes.boot_id()}


def make_folder(tmp_path: Path, pid: int, **fields: Any) -> Path:
    """A run of three ranks: one prints steps, one only complains, one has ended with 3."""
    folder = tmp_path / "run" / "1"
    own = identity(pid)
    events: list[dict[str, Any]] = [{"ev": "ready"}, {"ev": "agent", "pid": pid}]
    for rank, (out, err) in enumerate((("step 7\n 50%\r 60%", ""), ("", "a warning\n"), ("step 5\n", "bad\n"))):
        place = folder / "ranks" / "run.a1_x8" / "attempt_0" / str(rank)
        place.mkdir(parents=True)
        (place / "stdout.log").write_text(out)
        (place / "stderr.log").write_text(err)
        events.append({"ev": "rank", "rank": 4 + rank, "local_rank": rank, "pid": pid, "ticks": own["ticks"]})
    events.append({"ev": "rank_exit", "rank": 6, "local_rank": 2, "code": 3, "signal": None})
    status = {
        "run_id": "run",
        "attempt": 1,
        "node_rank": 1,
        "state": "running",
        "reason": "",
        "supervisor": own,
        "agent": pid,
        "tree": [[pid, own["ticks"]]],
        "events": events,
        "gpu_memory": {},
        **fields,
    }
    runfolder.write_status(str(folder), status)
    return folder


def test_a_running_node(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, os.getpid())
    told = report.build_report(str(folder))
    assert told["state"] == "running"
    assert told["supervisor"] == {"pid": os.getpid(), "alive": True, "suspended": False}
    assert told["agent"] == os.getpid()
    assert 0 <= told["heartbeat_age_s"] < 30
    assert not told["ended"]
    assert not told["rebooted"]
    assert told["gpus"] == []
    first, second, third = told["ranks"]
    assert (first["rank"], first["local_rank"], first["state"]) == (4, 0, "running")
    assert (first["last_line"], first["step"]) == ("60%", 7)
    assert (second["last_line"], second["step"]) == ("a warning", None)
    assert (third["state"], third["code"], third["last_line"], third["step"]) == ("exited", 3, "step 5", 5)
    json.dumps(told)


def test_a_supervisor_that_is_gone_leaves_ranks_that_have_exited(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        folder = make_folder(tmp_path, child.pid)
        child.kill()
        child.wait()
        told = report.build_report(str(folder))
    assert not told["supervisor"]["alive"]
    assert told["agent"] is None
    assert told["processes"] == 0
    assert {rank["state"] for rank in told["ranks"]} == {"exited"}
    assert told["ranks"][0]["code"] is None


def test_a_suspended_supervisor_another_boot_and_the_last_word(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        os.kill(child.pid, 19)
        folder = make_folder(tmp_path, child.pid)
        end = time.monotonic() + 10
        while not report.build_report(str(folder))["supervisor"]["suspended"]:
            assert time.monotonic() < end
        child.kill()
    status = runfolder.read_status(str(folder))
    assert status is not None
    status["supervisor"]["boot_id"] = "another"
    status["events"].append({"ev": "final", "survivors": [{"pid": 1}], "gpus": [{"gpu": 0, "held_mib": 300}]})
    runfolder.write_status(str(folder), status)
    told = report.build_report(str(folder))
    assert told["rebooted"]
    assert told["heartbeat_age_s"] is None
    assert told["ended"]
    assert told["survivors"] == [{"pid": 1}]
    assert told["gpus_held"] == [{"gpu": 0, "held_mib": 300}]


def test_the_age_of_a_heartbeat_ignores_the_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path, os.getpid())
    uptime_s = clock.uptime_s()
    monkeypatch.setattr(clock, "uptime_s", lambda: uptime_s + 100)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 100 <= report.build_report(str(folder))["heartbeat_age_s"] < 130


def test_the_gpus_of_the_run_alone(tmp_path: Path, tool: Path) -> None:
    write_tool(
        tool, "echo '0, GPU-a, 81559, 5, 0'; echo '1, GPU-b, 81559, 61000, 87'; echo '2, GPU-c, 81559, 4, [N/A]'"
    )
    used = report.build_report(str(make_folder(tmp_path / "a", os.getpid(), gpu_memory={"GPU-b": 4, "GPU-c": None})))
    assert used["gpus"] == [
        {"index": 1, "used_mib": 61000, "total_mib": 81559, "util_percent": 87},
        {"index": 2, "used_mib": 4, "total_mib": 81559, "util_percent": None},
    ]
    unknown = report.build_report(str(make_folder(tmp_path / "b", os.getpid(), gpu_memory=None)))
    assert [gpu["index"] for gpu in unknown["gpus"]] == [0, 1, 2]


def test_a_tool_that_fails_hands_over_and_one_that_hangs_is_left(tmp_path: Path, tool: Path) -> None:
    write_tool(tool, "echo no driver; exit 9")
    write_tool(
        tool.with_name("rocm-smi"), """echo '{"card0": {"GPU use (%)": "40", "VRAM Total Memory (B)": "1048576"}}'"""
    )
    folder = str(make_folder(tmp_path, os.getpid(), gpu_memory=None))
    told = report.build_report(folder)
    assert told["gpus"] == [{"index": 0, "used_mib": None, "total_mib": 1, "util_percent": 40}]
    assert told["gpus_why"] == "nvidia-smi ended with 9: no driver"

    write_tool(tool, "exec sleep 60")
    job = report.ReportJob(folder)
    assert job.done() is None
    job._question._end = time.monotonic() + 0.3  # type: ignore[union-attr]
    begin = time.monotonic()
    while (told_late := job.done()) is None:
        time.sleep(0.01)
    assert time.monotonic() - begin < 3
    assert told_late["gpus"] is None
    assert "nvidia-smi gave no answer within" in told_late["gpus_why"]
    assert told_late["ranks"]


def test_no_run(tmp_path: Path) -> None:
    assert "no run" in report.build_report(str(tmp_path / "none"), gpus=False)["error"]


def test_a_rank_that_is_younger_than_the_last_record_of_the_tree_counts_as_living(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as rank, ExitStack() as undo:
        undo.callback(rank.kill)
        # Its words are there a moment after the one program has taken the place of the other.
        wait_for(lambda: Path(f"/proc/{rank.pid}/cmdline").read_bytes() == b"sleep\x00600\x00")
        own = identity(rank.pid)
        event = {"ev": "rank", "rank": 0, "local_rank": 0, "pid": rank.pid, "ticks": own["ticks"], "time": 1.0}
        folder = tmp_path / "run_1" / "0"
        folder.mkdir(parents=True)
        gone = {**own, "pid": 0}
        status = {"run_id": "run_1", "state": "running", "supervisor": gone, "tree": [], "events": [event]}
        runfolder.write_status(str(folder), status)
        assert report.build_report(str(folder), gpus=False)["processes"] == 1
        assert forget.find_life("run_1", str(folder), {}) == f"pid {rank.pid}  sleep 600"
        assert runs.read_folders(str(tmp_path))["run_1", 0]["live"]
        rank.kill()
        rank.wait()
        assert forget.find_life("run_1", str(folder), {}) == ""
