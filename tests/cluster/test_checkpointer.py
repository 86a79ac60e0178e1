"""Checkpoints with real ranks: what was saved comes back bit for bit, whatever died in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

SERVER = Path(__file__).with_name("checkpoint_ranks.py")


class Scenes:
    """A server that imports PyTorch once and plays scenes."""

    def __init__(self, *words: str) -> None:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        command = [sys.executable, *words, str(SERVER)]
        self.process: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env | {"OMP_NUM_THREADS": "1"}
        )

    def play(self, scene: str, folder: Path) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"scene": scene, "folder": str(folder)}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the server died with {self.process.wait()}"
        error: Any = json.loads(answer)
        assert error is None, error


@pytest.fixture(scope="module")
def scenes() -> Iterator[Scenes]:
    started = Scenes()
    yield started
    started.process.kill()
    started.process.wait()


SCENES = ("equality", "untouched", "handed_out", "damaged", "branches", "two_runs", "refusals", "killed")


@pytest.mark.parametrize("scene", SCENES)
def test_scene(scenes: Scenes, tmp_path: Path, scene: str) -> None:
    scenes.play(scene, tmp_path)


def test_a_full_disk_fails_the_save_on_all_ranks(scenes: Scenes, tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", probe], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("a small disk needs a mount, and that needs root")
    subprocess.run(["umount", probe], check=True)
    scenes.play("full_disk", tmp_path)


@pytest.mark.long
def test_gpus_over_nccl(scenes: Scenes, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    scenes.play("on_gpus", tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_killed_at_any_moment_for_minutes(scenes: Scenes, tmp_path: Path) -> None:
    scenes.play("killed_long", tmp_path)
