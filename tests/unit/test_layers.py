from __future__ import annotations

import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

import layers  # noqa: E402 - a program of scripts/, found by the line above


def write(project: Path, name: str, text: str) -> Path:
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(project: Path, name: str, text: str) -> list[str]:
    return layers.check_file(project, write(project, name, text))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("orchestrator/plan/build.py", "from orchestrator.phases import connect"),
        ("orchestrator/plan/build.py", "from ..phases import connect"),
        ("orchestrator/plan/build.py", "from orchestrator import actions"),
        ("orchestrator/plan/build.py", "import orchestrator.output.screen"),
        ("orchestrator/output/screen.py", "from orchestrator.phases.watch import watch"),
        ("orchestrator/transport/local.py", "from orchestrator.output.screen import Screen"),
        ("orchestrator/values.py", "from orchestrator.nodelist import read_node_list"),
        ("orchestrator/nodeline.py", "from orchestrator.settings import Settings"),
        ("orchestrator/phases/push.py", "from orchestrator.actions import launch"),
    ],
)
def test_an_import_of_a_higher_room_is_a_fault(tmp_path: Path, name: str, line: str) -> None:
    (fault,) = faults_of(tmp_path, name, f"\n{line}\n")
    assert fault.startswith(f"{name}:2: ")
    assert "a higher room" in fault


def test_an_import_of_a_neighbour_is_a_fault(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, "orchestrator/checks/gpu.py", "from orchestrator.transport import Link\n")
    assert "a neighbour" in fault


def test_imports_in_functions_and_type_blocks_count(tmp_path: Path) -> None:
    text = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.cli import app


def late():
    from orchestrator.actions import launch
"""
    assert len(faults_of(tmp_path, "orchestrator/plan/build.py", text)) == 2


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("orchestrator/phases/connect.py", "import paramiko", "only transport/ssh"),
        ("orchestrator/transport/local.py", "from fabric import Connection", "only transport/ssh"),
        ("orchestrator/phases/start.py", "import torch.distributed", "never imports torch"),
        ("orchestrator/node/pump.py", "import psutil", "standard library"),
        ("orchestrator/node/pump.py", "from orchestrator.values import Node", "standard library"),
        ("orchestrator/checks/disk.py", "import subprocess", "pure room"),
        ("orchestrator/settings.py", "import os\nx = os.environ", "pure room"),
        ("orchestrator/plan/build.py", "from datetime import datetime\nx = datetime.now()", "pure room"),
        ("orchestrator/plots/draw.py", "x = 1", "no level"),
    ],
)
def test_a_library_out_of_place_is_a_fault(tmp_path: Path, name: str, line: str, words: str) -> None:
    (fault,) = faults_of(tmp_path, name, line + "\n")
    assert words in fault


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("orchestrator/transport/ssh_dial.py", "import paramiko"),
        ("orchestrator/node/pump.py", "from orchestrator.node import wire\nimport os, socket"),
        ("orchestrator/distributed.py", "import torch"),
        ("orchestrator/actions.py", "from orchestrator.phases.push import push_code"),
        ("orchestrator/settings.py", "from orchestrator.textfiles import read_text"),
        ("orchestrator/plan/build.py", "from orchestrator.plan.ranks import x\nfrom orchestrator import __version__"),
        ("scripts/train.py", "import torch, paramiko"),
    ],
)
def test_what_has_its_place_is_no_fault(tmp_path: Path, name: str, line: str) -> None:
    assert faults_of(tmp_path, name, line + "\n") == []


@pytest.mark.parametrize(("name", "lines", "most"), [("scripts/a.py", 300, 50), ("tests/a.py", 400, 80)])
def test_long_files_and_functions_are_faults(tmp_path: Path, name: str, lines: int, most: int) -> None:
    body = "    x = 1\n"
    assert faults_of(tmp_path, name, "def short():\n" + body * (most - 2)) == []
    assert f"long has {most} lines" in faults_of(tmp_path, name, "def long():\n" + body * (most - 1))[0]
    assert faults_of(tmp_path, name, "x = 1\n" * (lines - 1)) == []
    assert f"{lines} lines in one file" in faults_of(tmp_path, name, "x = 1\n" * lines)[0]


def test_the_program_prints_each_fault_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "orchestrator/actions.py", "from orchestrator.cli import app\n")
    write(tmp_path, "orchestrator/cli.py", "from orchestrator.actions import launch\n")
    assert layers.main(tmp_path) == 1
    assert "orchestrator/actions.py:1: actions imports cli" in capsys.readouterr().out
    write(tmp_path, "orchestrator/actions.py", "")
    assert layers.main(tmp_path) == 0
