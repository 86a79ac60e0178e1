"""Level 2 without nodes that are far: the program under load, the gauges, the table; GPUs in use are left alone."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.checks.load_causes import why_spared
from orchestrator.facts import Facts, Gpu, GpuProcess, Survey
from orchestrator.facts.group import parse_group
from orchestrator.facts.load import GpuGauge, LoadFacts
from orchestrator.node import gauges, smi_gauges
from orchestrator.node.smi import OddOutputError
from orchestrator.output.measured import render_measured
from orchestrator.phases.addresses import Place
from orchestrator.phases.exercise import Crew, read_program
from orchestrator.phases.load import Watch, find_spared, run_load
from orchestrator.settings import Settings
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node

DATA = Path(__file__).parents[1] / "data"
H100 = "NVIDIA H100 80GB HBM3"


def build_crew(nodes: list[Node], facts: list[Facts], **settings: Any) -> Crew:
    return Crew(
        links=[LocalLink(node) for node in nodes],
        nodes=nodes,
        facts=facts,
        places=[Place("127.0.0.1", "lo")] * len(nodes),
        settings=Settings(**settings),
    )


def read_load(case: str) -> LoadFacts:
    survey = json.loads((DATA / "facts" / f"{case}.json").read_text(encoding="utf-8"))["survey"]
    load = parse_group(Survey, survey, case).load
    assert load is not None
    return load


def render(load: LoadFacts) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=200)
    for part in render_measured([Node(name=f"node-{name}", host="h") for name in "abc"], Survey(load=load)):
        console.print(part)
    return out.getvalue().splitlines()


class TestSamples:
    def test_nvidia_tells_clock_heat_and_why_it_is_slow(self) -> None:
        text = "0, 1410, 1980, 91, 512.33, 0x0000000000000044\n1, 1980, 1980, 61, 690.10, 0x0000000000000001\n"
        hot, well = smi_gauges.parse_nvidia_samples(text)
        assert hot == {
            "index": 0,
            "clock_mhz": 1410,
            "clock_max_mhz": 1980,
            "temperature_c": 91,
            "power_w": 512,
            "throttle": ["power cap", "hardware thermal"],
        }
        assert well["throttle"] == []

    def test_two_real_h200_of_which_one_works_as_hard_as_its_power_allows(self) -> None:
        idle, busy = smi_gauges.parse_nvidia_samples((DATA / "smi" / "nvidia_h200_load.csv").read_text())
        assert (idle["clock_mhz"], idle["throttle"], busy["throttle"]) == (1980, [], ["power cap"])
        assert (busy["clock_mhz"], busy["clock_max_mhz"], busy["power_w"]) == (1485, 1980, 692)

    def test_what_nvidia_cannot_tell_is_not_known(self) -> None:
        (gpu,) = smi_gauges.parse_nvidia_samples("0, [N/A], [N/A], 40, [Not Supported], [Not Supported]\nfoo\n\n")
        assert (gpu["clock_mhz"], gpu["power_w"], gpu["throttle"]) == (None, None, [])
        assert (
            smi_gauges.parse_nvidia_samples('Field "clocks_event_reasons.active" is not a valid field to query.') == []
        )

    def test_amd_tells_the_middle_clock_of_its_dies(self) -> None:
        first, second = smi_gauges.parse_amd_samples((DATA / "smi" / "amd_load_metric.json").read_text())
        assert first == {
            "index": 0,
            "clock_mhz": 1402,
            "clock_max_mhz": 2100,
            "temperature_c": 88,
            "power_w": 749,
            "throttle": ["hardware thermal", "power cap"],
        }
        assert (second["clock_mhz"], second["temperature_c"], second["throttle"]) == (None, 54, ["software thermal"])

    def test_rocm_smi_tells_the_clock(self) -> None:
        text = (
            'WARNING: something\n{"card1": {"sclk clock speed:": "(2100Mhz)", "Temperature (Sensor junction) (C)": "61.0", '
            '"Average Graphics Package Power (W)": "300.0"}, "card0": {}, "system": {}}'
        )
        bare, gpu = smi_gauges.parse_rocm_samples(text)
        assert (gpu["index"], gpu["clock_mhz"], gpu["temperature_c"], gpu["power_w"]) == (1, 2100, 61, 300)
        assert (bare["index"], bare["clock_mhz"]) == (0, None)
        with pytest.raises(OddOutputError):
            smi_gauges.parse_rocm_samples("nothing of the kind")

    def test_samples_become_the_middle_clock_and_the_highest_heat(self) -> None:
        rows = [(1980, 60, []), (1410, 90, ["hardware thermal"]), (1400, 91, ["power cap"])]
        samples = [
            {"index": 3, "clock_mhz": mhz, "clock_max_mhz": 1980, "temperature_c": c, "power_w": None, "throttle": why}
            for mhz, c, why in rows
        ]
        assert GpuGauge(**gauges.fold_samples(samples) | {"throttle": ()}) == GpuGauge(
            index=3, clock_mhz=1410, clock_max_mhz=1980, temperature_c=91
        )
        assert gauges.fold_samples(samples)["throttle"] == ["hardware thermal", "power cap"]


class TestTools:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(
            gauges, "find_tool", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else ""
        )
        return tmp_path

    def put(self, path: Path, body: str) -> None:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def test_an_old_driver_is_asked_by_the_old_name_and_only_by_it_from_then_on(self, folder: Path) -> None:
        line = "0, 1410, 1980, 91, 512.33, 0x40"
        self.put(
            folder / "nvidia-smi",
            f'echo "$1" >> {folder}/asked; case $1 in *event_reasons*) exit 2;; esac; echo {line!r}',
        )
        tools = gauges.list_tools()
        assert gauges.ask_gpus(tools)[0]["throttle"] == ["hardware thermal"]
        assert gauges.ask_gpus(tools)[0]["clock_mhz"] == 1410
        asked = (folder / "asked").read_text().splitlines()
        assert ["event" in line for line in asked] == [True, False, False]

    def test_a_driver_that_is_late_once_is_asked_again(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gauges, "ASK_S", 0.3)
        self.put(folder / "nvidia-smi", "sleep 5")
        tools = gauges.list_tools()
        assert gauges.ask_gpus(tools) == []
        self.put(folder / "nvidia-smi", "echo 0, 1980, 1980, 60, 600, 0x0")
        monkeypatch.setattr(gauges, "ASK_S", 20)
        assert gauges.ask_gpus(tools)[0]["clock_mhz"] == 1980

    def test_without_a_tool_there_are_no_gpus(self, folder: Path) -> None:
        assert folder.exists()
        assert gauges.ask_gpus(gauges.list_tools()) == []


class TestSpared:
    gpu = Gpu(index=1, uuid="GPU-b", model=H100, memory_used_mib=12)

    def spared(self, *processes: GpuProcess, gpu: Gpu = gpu, **settings: Any) -> str:
        return why_spared(gpu, Facts(node_rank=0, gpu_processes=processes), Settings(**settings))

    def test_a_gpu_in_use_is_left_alone_and_its_neighbour_is_not(self) -> None:
        others = GpuProcess(pid=9, uuid="GPU-b", owner="bob", command="python")
        assert self.spared(others) == "pid 9 (bob) uses it"
        assert self.spared(GpuProcess(pid=9, uuid="GPU-a", owner="bob", command="python")) == ""
        # amd-smi names the GPU by its number, rocm-smi none: then all count as used.
        assert self.spared(GpuProcess(pid=9, uuid="1", owner="", command="x")) == "pid 9 (owner not visible) uses it"
        assert self.spared(GpuProcess(pid=9, uuid="", owner="bob", command="x"))

    def test_memory_that_somebody_unseen_holds_counts_as_in_use(self) -> None:
        gpu = Gpu(index=1, uuid="GPU-b", model=H100, memory_used_mib=30000)
        assert self.spared(gpu=gpu) == "30000 MiB of it are in use"
        assert self.spared(gpu=gpu, checks={"gpu-free": {"warn_mib": 40000}}) == ""

    def test_nothing_runs_where_all_are_in_use(self) -> None:
        processes = (GpuProcess(pid=9, uuid="", owner="bob", command="python"),)
        facts = Facts(node_rank=0, python="/nowhere", torch_cuda="12.8", gpus=(self.gpu,), gpu_processes=processes)
        crew = build_crew([Node(name="a", host="a", local=True)], [facts])
        assert find_spared(crew) == {(0, 0): "pid 9 (bob) uses it"}
        told: list[str] = []
        assert run_load(crew, told.append).not_run == "not run: all GPUs are in use by others"
        assert told == ["load not run: all GPUs are in use by others"]

    def test_a_run_on_processors_puts_nothing_on_gpus(self) -> None:
        facts = Facts(node_rank=0, torch_cuda="12.8", gpus=(self.gpu,))
        node = Node(name="a", host="a", local=True)
        assert build_crew([node], [facts]).device == "cuda"
        assert build_crew([node], [facts], nproc_per_node="cpu").device == "cpu"


class TestTable:
    def test_whoever_is_furthest_behind_comes_first_and_what_is_in_use_last(self) -> None:
        title, head, first, second, third, *rest, last = render(read_load("case_load_gpus"))[1:]
        assert title == f"under load, {H100}; whoever is furthest behind its equals first"
        assert head.split() == (
            [
                "node",
                "to",
                "equals",
                "GPU",
                "TFLOPS",
                "memory",
                "GB/s",
                "to",
                "GPU",
                "from",
                "GPU",
                "clock",
                "MHz",
                "°C",
                "slowed",
                "by",
            ]
        )
        assert first.split()[:5] == ["1", "node-b", "-52.9", "%", "6"]
        assert (
            second
            == "1 node-b  -14.1 %    4    550     2400         52      51        1410 of 1980  91  hardware thermal"
        )
        assert third.split()[2] == "-12.5"
        assert last.split() == ["0", "node-a", "in", "use", "6"]
        assert all("+0.0 %" in line for line in rest)

    def test_processors_show_what_held_them_back(self) -> None:
        _, head, slow, *rest = render(read_load("case_load_processors"))[1:]
        assert head.split() == [
            "node",
            "to",
            "equals",
            "threads",
            "TFLOPS",
            "memory",
            "GB/s",
            "clock",
            "MHz",
            "held",
            "back",
        ]
        assert slow.split() == ["2", "node-c", "-62.5", "%", "4", "0.3", "5", "9.5", "of", "25", "s"]
        assert [line.split()[1] for line in rest] == ["node-a", "node-b"]

    def test_of_many_only_a_screen_is_shown(self) -> None:
        load = read_load("case_load_gpus")
        more = [one.model_copy(update={"node_rank": 2}) for one in load.members]
        lines = render(load.model_copy(update={"members": (*load.members, *more)}))
        assert lines[-1] == "and 16 more, which are less far behind"
        assert "broken" in render(read_load("case_load_broken"))[3]


class TestProgram:
    def test_it_needs_python_39_the_standard_library_and_torch_alone(self) -> None:
        tree = ast.parse(read_program("load"), feature_version=(3, 9))
        names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert names <= sys.stdlib_module_names | {"torch"}

    @contextmanager
    def running(self, local_rank: int) -> Iterator[Any]:
        out, theirs = os.pipe()
        words = {"local_rank": local_rank, "out": theirs}
        source = f"exec(compile({read_program('load')!r}, 'load.py', 'exec'), {{'WORDS': {words}}})"
        process = subprocess.Popen(
            [sys.executable, "-c", source],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(theirs,),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        os.close(theirs)
        with os.fdopen(out) as answers:

            def ask(**order: Any) -> dict[str, Any]:
                assert process.stdin is not None
                process.stdin.write(json.dumps({"number": 7, **order}) + "\n")
                process.stdin.flush()
                answer: dict[str, Any] = json.loads(answers.readline())
                assert answer.pop("number") == 7
                return answer

            yield ask
            process.communicate(timeout=20)
            assert process.returncode == 0

    def test_it_measures_says_what_breaks_and_leaves_alone_what_it_shall(self) -> None:
        pytest.importorskip("torch", reason="PyTorch is not installed")
        with self.running(local_rank=2) as ask:
            assert ask(op="prepare", device="cpu", spare=[0]) == {"threads": 1}
            compute = ask(op="compute", seconds=0.3)
            assert compute["tflops"] > 0
            assert compute["repeats"] >= 2
            assert compute["different"] == 0
            assert ask(op="memory", seconds=0.2)["memory_gbs"] > 0
            assert ask(op="compute", seconds=60, spare=[1, 2]) == {}
            assert ask(op="nonsense")["error"].startswith("AttributeError: ")


def test_gauges_tell_of_a_foreign_process_and_of_the_time_since_the_last_report() -> None:
    node = Node(name="a", host="127.0.0.1", local=True)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with Watch(build_crew([node], [Facts(node_rank=0, python=sys.executable)])) as watch:
            watch.report("before")
            (seen,) = watch.report("compute")
            while not any(one.pid == busy.pid for one in seen.foreign) and seen.took_s < 20:
                (seen,) = watch.report("compute")
    finally:
        busy.kill()
        busy.wait()
    assert seen.load == "compute"
    assert seen.trouble == ""
    (found,) = [one for one in seen.foreign if one.pid == busy.pid]
    assert "while True" in found.command
    assert seen.busy_share is None or 0 < seen.busy_share <= 1
