"""Checkpoints on one disk: what is whole, what is swept away, who may write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from orchestrator.distributed import checkpoint_disk as disk
from orchestrator.distributed.checkpoint_lock import give_lock_back, take_lock
from orchestrator.distributed.checkpoint_nodes import group_nodes
from orchestrator.distributed.checkpoint_tree import put_together, take_apart
from orchestrator.distributed.errors import DistributedError

PROJECT = Path(__file__).resolve().parents[2]


def stage(directory: Path, step: int, token: str = "t") -> Path:
    staging = directory / disk.staging_name(token, step)
    staging.mkdir()
    (staging / "a.distcp").write_bytes(b"x" * step)
    (staging / ".metadata").write_bytes(b"m")
    return staging


def save(directory: Path, step: int, number: int, token: str = "t") -> disk.Whole:
    staging = stage(directory, step, token)
    files = tuple(disk.list_files(staging).items())
    whole = disk.Whole(step, number, token, 2, "2026-01-01T00:00:00+00:00", "2.9", files)
    disk.write_record(staging, whole)
    disk.publish(staging, step, token)
    return whole


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_was_published_is_found_whole_in_the_order_of_saves(tmp_path: Path) -> None:
    made = [save(tmp_path, 300, 1), save(tmp_path, 10, 2), save(tmp_path, 123456789, 3)]
    assert disk.find_wholes(tmp_path) == (made, [])
    assert names(tmp_path) == ["step_00000010", "step_00000300", "step_123456789"]
    record = json.loads((tmp_path / "step_00000010/whole.json").read_text())
    assert record["files"] == {".metadata": 1, "a.distcp": 10}


BREAKS: dict[str, Any] = {
    "has no whole.json": lambda folder: (folder / "whole.json").unlink(),
    "cannot be read": lambda folder: (folder / "whole.json").write_text("{"),
    "its whole.json cannot": lambda folder: (folder / "whole.json").write_text("[]"),
    "a.distcp has 3 bytes of 5": lambda folder: os.truncate(folder / "a.distcp", 3),
    "a.distcp: No such file": lambda folder: (folder / "a.distcp").unlink(),
    "is of step 4": lambda folder: change(folder, step=4),
    "names '../b'": lambda folder: change(folder, files={"../b": 1}),
}


def change(folder: Path, **words: object) -> None:
    record = json.loads((folder / "whole.json").read_text())
    (folder / "whole.json").write_text(json.dumps(record | words))


@pytest.mark.parametrize("told", BREAKS)
def test_a_damaged_checkpoint_is_passed_over_and_that_is_told(tmp_path: Path, told: str) -> None:
    stands, _ = save(tmp_path, 4, 1), save(tmp_path, 5, 2)
    BREAKS[told](tmp_path / "step_00000005")
    wholes, (complaint,) = disk.find_wholes(tmp_path)
    assert wholes == [stands]
    assert told in complaint
    assert "step_00000005 is not whole" in complaint


def test_a_step_saved_again_takes_the_place_of_the_older_one(tmp_path: Path) -> None:
    save(tmp_path, 5, 1, "old")
    new = save(tmp_path, 5, 2, "new")
    assert disk.find_wholes(tmp_path) == ([new], [])
    assert names(tmp_path) == ["step_00000005"]


def test_what_dead_saves_left_is_swept_and_what_stood_aside_comes_back(tmp_path: Path) -> None:
    old = save(tmp_path, 5, 1)
    (tmp_path / "step_00000005").rename(tmp_path / ".replaced_step_00000005.dead")
    stage(tmp_path, 5, "dead")
    save(tmp_path, 6, 2)
    stage(tmp_path, 6, "x").rename(tmp_path / ".replaced_step_00000006.dead")
    stage(tmp_path, 1, "y").rename(tmp_path / ".deleted_step_00000001")
    (tmp_path / ".seen_a.0").touch()
    (tmp_path / ".seen_b.0").touch()
    os.utime(tmp_path / ".seen_b.0", (time.time() - 2 * disk.OLD_S,) * 2)
    (tmp_path / "notes.txt").touch()
    disk.recover(tmp_path)
    assert names(tmp_path) == [".seen_a.0", "notes.txt", "step_00000005", "step_00000006"]
    assert disk.find_wholes(tmp_path)[0][0] == old


def test_the_newest_saves_are_kept_and_later_damaged_steps_left_alone(tmp_path: Path) -> None:
    for number, step in enumerate((100, 200, 300, 10, 20)):
        save(tmp_path, step, number)
    (tmp_path / "step_00000015").mkdir()
    (tmp_path / "step_00000400").mkdir()
    disk.delete_older(tmp_path, keep=3)
    assert names(tmp_path) == ["step_00000010", "step_00000020", "step_00000300", "step_00000400"]


@pytest.mark.parametrize("place", ["run/outputs", "run/outputs/deep/er", "runs/r-1/0/ckpt", "link/ckpt"])
def test_a_place_that_goes_with_the_run_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "run/outputs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "run/outputs")
    outputs, runs = str(tmp_path / "run/outputs"), [tmp_path / "runs"]
    with pytest.raises(DistributedError, match="choose one outside"):
        disk.check_place(tmp_path / place, outputs, runs)
    disk.check_place(tmp_path / "run/outputs_2", outputs, runs)
    disk.check_place(tmp_path / place, None, [], tmp_path / "project")
    with pytest.raises(DistributedError, match="in the pushed project"):
        disk.check_place(tmp_path / place, None, [], tmp_path)


def test_the_lock_of_a_live_process_is_told_and_ends_with_it(tmp_path: Path) -> None:
    program = f"""
import sys; sys.path.insert(0, {str(PROJECT / "orchestrator/distributed")!r})
import checkpoint_lock, pathlib
checkpoint_lock.take_lock(pathlib.Path({str(tmp_path)!r}))
print("held", flush=True); sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BlockingIOError, match=f"another live run saves there .process {holder.pid} on "):
        take_lock(tmp_path, patience_s=0)
    holder.kill()
    holder.communicate()
    first, second = take_lock(tmp_path), take_lock(tmp_path)
    assert first == second
    give_lock_back(first)
    give_lock_back(second)


def test_nodes_are_grouped_by_whose_file_each_sees() -> None:
    places = [(0, True, [0, 2]), (0, False, []), (1, True, [1]), (2, True, [0, 2]), (2, False, []), (3, True, [3, 0])]
    disks = group_nodes(places)
    assert disks.leaders == (0, 2, 5)
    assert disks.disk_of_rank == (0, 0, 1, 0, 0, 2)
    assert disks.ranks_of(0) == [0, 1, 3, 4]


def test_a_state_of_any_shape_comes_apart_and_together() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    one, two = torch.ones(2), torch.zeros(3)
    state = {"a": one, 1: [two, {"b": (one, "x")}], "plain": [1, {"c": None}], "empty": {}}
    tensors: dict[str, Any] = {}
    tree = take_apart("part", state, tensors)
    assert sorted(tensors) == ["part.1.0", "part.1.1.b.0", "part.a"]
    back = put_together(tree, tensors)
    assert back["a"] is not one
    assert torch.equal(back[1][0], two)
    assert back[1][1]["b"][1] == "x"
    assert (back["plain"], back["empty"]) == ([1, {"c": None}], {})
    with pytest.raises(DistributedError, match=r"two tensors are called part\.1"):
        take_apart("part", {1: one, "1": two}, {})
