"""Whether the GPUs gave back what a run held: what counts, whose it is, and what cannot be told."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from runs import Story

from orchestrator.facts import Facts, Gpu
from orchestrator.facts.gpus import GpuProcess
from orchestrator.node import gpu_memory, gpu_use, smi
from orchestrator.output.kill_text import is_clean, kill_document, render_kill
from orchestrator.output.verdict_text import render_verdict, verdict_document
from orchestrator.phases.saved_run import parse_verdict
from orchestrator.phases.stop import read_held
from orchestrator.plan.gpus import build_gpu_memory
from orchestrator.values import EnvValue, Node, StopReport

DATA = Path(__file__).parents[1] / "data" / "smi"
NOBODY = 2**22 + 1
"""A pid that no kernel gives out."""


def gpu(index: int, used: int | None) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "total_mib": 81559, "used_mib": used, "util_percent": 0}


def app(pid: int, used: int | None, uuid: str = "GPU-0") -> dict[str, Any]:
    return {"pid": pid, "uuid": uuid, "used_mib": used, "command": "x"}


def judge(used: int | None, *apps: dict[str, Any], before: int = 12) -> dict[str, Any]:
    return gpu_memory.judge({"GPU-0": before}, {"gpus": [gpu(0, used)], "apps": list(apps), "why": ""})


def test_what_is_back_and_what_is_held() -> None:
    assert judge(12) == {"gpus": []}
    assert judge(12 + gpu_memory.MARGIN_MIB) == {"gpus": []}
    assert judge(3012)["gpus"] == [{"gpu": 0, "held_mib": 3000, "before_mib": 12, "foreign": []}]


def test_what_living_foreign_processes_hold_is_theirs() -> None:
    own = os.getpid()
    assert judge(3012, app(own, 3000)) == {"gpus": []}
    (held,) = judge(9012, app(own, 3000), app(own, 500, "GPU-1"))["gpus"]
    assert (held["held_mib"], held["foreign"]) == (6000, [{"pid": own, "used_mib": 3000}])
    assert judge(3012, app(own, 3000, "")) == {"gpus": []}, "rocm-smi names no GPU"


def test_a_pid_that_is_nowhere_is_somebody_only_inside_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "sees_all_processes", lambda: True)
    assert judge(3012, app(NOBODY, 3000))["gpus"]
    monkeypatch.setattr(gpu_memory, "sees_all_processes", lambda: False)
    assert judge(3012, app(NOBODY, 3000)) == {"gpus": []}


def test_what_cannot_be_told_is_no_failure() -> None:
    assert "no longer tells of GPU GPU-0" in judge(None)["gpus_why"]
    gone = gpu_memory.judge({"GPU-9": 1}, {"gpus": [gpu(0, 5)], "apps": [], "why": ""})
    assert "no longer tells of GPU GPU-9" in gone["gpus_why"]
    unknown = judge(3012, app(os.getpid(), None))
    assert "whose it is the driver does not tell" in unknown["gpus_why"]
    silent = gpu_memory.judge({"GPU-0": 1}, {"gpus": [gpu(0, 3000)], "apps": None, "why": ""})
    assert "whose it is the driver does not tell" in silent["gpus_why"]
    late = gpu_memory.judge({"GPU-0": 1}, {"gpus": None, "apps": None, "why": "nvidia-smi gave no answer within 5 s"})
    assert late == {"gpus_why": "nvidia-smi gave no answer within 5 s"}
    assert gpu_memory.left_over({}) == gpu_memory.left_over(None) == gpu_memory.left_over({"GPU-0": None}) == {}


def put_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncase $1 in --query-compute*) exit 0;; esac\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tool


def test_memory_that_comes_back_a_little_later_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(
        tmp_path,
        monkeypatch,
        f"echo x >>{tmp_path}/asked; [ $(wc -l <{tmp_path}/asked) -gt 2 ] && mib=4 || mib=900; "
        "echo 0, GPU-0, 81559, $mib, 0",
    )
    assert gpu_memory.left_over({"GPU-0": 4}) == {"gpus": []}
    assert (tmp_path / "asked").read_text().count("x") == 3


def test_held_memory_and_a_tool_that_hangs_cost_the_limit_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tool(tmp_path, monkeypatch, "echo 0, GPU-0, 81559, 900, 0")
    begin = time.monotonic()
    (held,) = gpu_memory.left_over({"GPU-0": 4}, 1.0)["gpus"]
    assert held["held_mib"] == 896
    assert 0.5 < time.monotonic() - begin < 3
    # It answers once and hangs then: what it said holds.
    put_tool(
        tmp_path,
        monkeypatch,
        f"[ -e {tmp_path}/once ] && exec sleep 60; touch {tmp_path}/once; echo 0, GPU-0, 1, 900, 0",
    )
    assert gpu_memory.left_over({"GPU-0": 4}, 1.0)["gpus"]
    begin = time.monotonic()
    assert "gave no answer within" in gpu_memory.left_over({"GPU-0": 4}, 1.0)["gpus_why"]
    assert time.monotonic() - begin < 3


def test_after_a_sweep_the_last_word_counts_where_it_proved_something(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def left_over(before: dict[str, int]) -> dict[str, Any]:
        asked.append(dict(before))
        return {}

    monkeypatch.setattr(gpu_memory, "left_over", left_over)
    proved = {"gpu_memory": {"a": 1}, "events": [{"ev": "final", "gpus": []}]}
    open_end = {"gpu_memory": {"b": 2}, "events": [{"ev": "final", "gpus": [{"gpu": 0}]}]}
    assert gpu_memory.after_sweep([proved]) == {"gpus": []}
    assert gpu_memory.after_sweep([open_end, {"gpu_memory": None}, {}]) == {}
    assert asked == [{}, {"b": 2}]


def test_tools_of_amd_tell_the_same() -> None:
    found = gpu_use.parse_amd_use((DATA / "amd_metric.json").read_text())
    assert [(one["index"], one["used_mib"], one["total_mib"], one["util_percent"]) for one in found] == [
        (0, 285, 196592, None),
        (1, 49152, 196592, None),
    ]
    cards = gpu_use.parse_rocm_use((DATA / "rocm_gpus.json").read_text())
    assert [(card["index"], card["used_mib"]) for card in cards] == [(0, 32768), (1, 10)]
    for parse, text in (
        (gpu_use.parse_amd_use, "[]"),
        (gpu_use.parse_rocm_use, "{}"),
        (gpu_use.parse_nvidia_use, "oops"),
    ):
        with pytest.raises(smi.OddOutputError):
            parse(text)


def facts(kind: str = "nvidia", **fields: Any) -> Facts:
    gpus = tuple(Gpu(index=at, uuid=f"GPU-{at}", model="m", memory_used_mib=10 + at) for at in range(3))
    return Facts(node_rank=0, gpu_kind=kind, gpus=gpus, **fields)


def test_the_plan_takes_the_level_of_the_gpus_that_the_ranks_may_use() -> None:
    node = Node(name="n", host="n")
    assert build_gpu_memory(node, facts(), "auto", ()) == (("GPU-0", 10), ("GPU-1", 11), ("GPU-2", 12))
    assert build_gpu_memory(node, facts("amd"), "auto", ())[0] == ("0", 10)
    assert build_gpu_memory(node, facts(), "cpu", ()) == ()
    assert build_gpu_memory(Node(name="n", host="n", gpus=("1",)), facts(), "auto", ()) == (("GPU-1", 11),)
    env = (EnvValue(name="CUDA_VISIBLE_DEVICES", value="2,GPU-0", origin="--env"),)
    assert build_gpu_memory(node, facts(), "2", env) == (("GPU-2", 12), ("GPU-0", 10))
    hidden = (EnvValue(name="CUDA_VISIBLE_DEVICES", value="", origin="--env"),)
    assert build_gpu_memory(node, facts(), "2", hidden) == ()


def test_what_others_held_before_is_no_part_of_the_level() -> None:
    other = GpuProcess(pid=5, uuid="GPU-0", owner="x", command="x", used_mib=7)
    assert build_gpu_memory(Node(name="n", host="n"), facts(gpu_processes=(other,)), "auto", ())[0] == ("GPU-0", 3)
    amd = GpuProcess(pid=5, uuid="1", owner="x", command="x", used_mib=7)
    assert build_gpu_memory(Node(name="n", host="n"), facts("amd", gpu_processes=(amd,)), "auto", ())[1] == ("1", 4)


def test_a_kill_says_what_became_of_it() -> None:
    def said(**fields: Any) -> str:
        return render_kill([StopReport(node_rank=0, node="n", stopped=4, **fields)]).plain

    assert said() == "n: 4 processes stopped, none left"
    assert said(gpus_held=()) == "n: 4 processes stopped, none left, GPU memory as before"
    assert said(gpus_why="nvidia-smi gave no answer within 5 s").endswith(
        "none left; GPU memory not checked: nvidia-smi gave no answer within 5 s"
    )
    held = StopReport(node_rank=0, node="n", gpus_held=read_held({"gpus": [{"gpu": 0, "held_mib": 3000}]}))
    assert "GPU 0 still holds 3,000 MiB more than before the run" in render_kill([held]).plain
    assert not is_clean([held])
    assert kill_document("run", [held])["nodes"][0]["gpus"] == [{"gpu": 0, "held_mib": 3000}]
    assert kill_document("run", [StopReport(node_rank=0, node="n")])["nodes"][0]["gpus"] is None


def test_a_verdict_with_held_memory_is_not_clean() -> None:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(0)
    story.rank_ends(1)
    story.node_ends(0, gpus=[{"gpu": 3, "held_mib": 3000, "before_mib": 4, "foreign": []}])
    story.node_ends(1, gpus_why="nvidia-smi gave no answer within 5 s")
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code) == ("succeeded", 1)
    text = render_verdict(verdict, story.plan, "e").plain
    assert "GPU MEMORY" in text
    assert "node0: GPU 3 still holds 3,000 MiB more than before the run" in text
    assert "node1: not checked: nvidia-smi gave no answer" in text
    assert "a reboot frees it" in text
    document = verdict_document(verdict)["verdict"]
    assert document["gpus_held"] == [{"node": "node0", "gpu": 3, "held_mib": 3000}]
    again = parse_verdict(document)
    assert (again.gpus_held, again.gpus_unchecked) == (verdict.gpus_held, verdict.gpus_unchecked)
