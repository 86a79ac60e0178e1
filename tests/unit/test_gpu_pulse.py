from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.node import gpu_pulse, smi

DATA = Path(__file__).parent.parent / "data" / "smi"
NVIDIA = """0, GPU-a, 100, 121.94, 700.00
1, GPU-b, 0, 118.10, 700.00
2, GPU-c, [N/A], [Unknown Error], 700.00
"""


def put_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_gpu_that_waits_in_a_kernel_is_seen_by_its_power() -> None:
    waits, sleeps, unknown = gpu_pulse.parse_nvidia_pulse(NVIDIA)
    assert (waits["util_percent"], waits["power_w"], waits["power_limit_w"]) == (100, 121, 700)
    assert (sleeps["util_percent"], sleeps["power_w"]) == (0, 118)
    assert (unknown["util_percent"], unknown["power_w"]) == (None, None)


def test_amd_tells_the_same() -> None:
    metric = json.loads((DATA / "amd_load_metric.json").read_text())
    metric[0]["usage"] = {"gfx_activity": {"value": 100, "unit": "%"}}
    static = (DATA / "amd_health_static.json").read_text()
    first, second = gpu_pulse.parse_amd_pulse(json.dumps(metric), static)
    assert first == {"index": 0, "uuid": "", "util_percent": 100, "power_w": 749, "power_limit_w": 750}
    assert second == {"index": 1, "uuid": "", "util_percent": None, "power_w": 480, "power_limit_w": 500}
    assert gpu_pulse.parse_amd_pulse(json.dumps(metric), "ERROR")[0]["power_limit_w"] is None
    with pytest.raises(smi.OddOutputError):
        gpu_pulse.parse_amd_pulse("ERROR", static)


def test_the_older_tool_of_amd_tells_it_too() -> None:
    cards = json.loads((DATA / "rocm_health.json").read_text())
    cards["card0"] |= {"GPU use (%)": "99", "Average Graphics Package Power (W)": "101.0"}
    first, second = gpu_pulse.parse_rocm_pulse(json.dumps(cards))
    assert first == {"index": 0, "uuid": "", "util_percent": 99, "power_w": 101, "power_limit_w": 560}
    assert (second["index"], second["util_percent"], second["power_w"]) == (1, None, None)


def test_only_the_gpus_of_the_run_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, monkeypatch, "nvidia-smi", f"cat <<'END'\n{NVIDIA}END")
    found, why = gpu_pulse.read_pulse({"GPU-b": 10})
    assert (why, [gpu["index"] for gpu in found]) == ("", [1])
    assert len(gpu_pulse.read_pulse(None)[0]) == 3
    assert gpu_pulse.read_pulse({}) == ([], ""), "a run without GPUs asks for none"


def test_a_tool_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, monkeypatch, "nvidia-smi", "echo no driver >&2; exit 9")
    monkeypatch.setattr(gpu_pulse, "QUERIES", gpu_pulse.QUERIES[:1])
    assert gpu_pulse.read_pulse(None) == ([], "nvidia-smi ended with 9: no driver")
