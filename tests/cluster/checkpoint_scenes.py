"""Scenes of saving, loading and handing out; each runs in the server of checkpoint_ranks and starts its ranks by fork."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from checkpoint_counting import CKPT, caught, counting_parts, load_once, names, save_steps, separate, shared
from checkpoint_models import build, differences, join, snapshot, train
from checkpoint_ranks import no_faults_in, start

from orchestrator.distributed.checkpoint import Checkpointer
from orchestrator.distributed.group import current


def save_kind(kind: str, reference: Path, backend: str | None = "gloo") -> Any:
    def work() -> Any:
        join(backend)
        parts = build(kind, seed=1)
        checkpoints = Checkpointer(CKPT)
        assert checkpoints.load(parts) == 0
        train(parts, 3, seed=1)
        checkpoints.save(7, parts)
        taken = snapshot(parts)
        if current().info.rank == 0:
            torch.save(taken, reference)
        return checkpoints.steps()

    return work


def load_kind(kind: str, reference: Path, backend: str | None = "gloo") -> Any:
    def work() -> Any:
        join(backend)
        parts = build(kind, seed=2)
        checkpoints = Checkpointer(CKPT)
        step = checkpoints.load(parts)
        found = differences("", snapshot(parts), torch.load(reference, weights_only=False))
        train(parts, 1, seed=3)  # what was loaded can be trained on
        checkpoints.save(step + 1, parts)
        return [step, found, checkpoints.steps()]

    return work


def equality(folder: Path) -> None:
    """Each kind saved on 2 ranks and loaded by others, in other numbers, from shared and separate disks."""
    table: list[tuple[str, Any, tuple[int, ...], list[tuple[str, tuple[int, ...]]]]] = [
        ("ddp", shared, (1, 1), [("ddp", (2, 2)), ("plain", (1,)), ("full", (3,)), ("compiled", (1, 1))]),
        ("full", separate, (1, 1), [("full", (2, 2)), ("plain", (1,)), ("ddp", (1, 1))]),
        ("hybrid", separate, (2, 2), [("hybrid", (1, 1)), ("full", (1, 2)), ("plain", (1,))]),
        ("plain", shared, (1,), [("full", (2,))]),
    ]
    for saved, disks, counts, others in table:
        place = folder / saved
        reference = place / "reference.pt"
        values = start(place, disks(place, *counts), save_kind(saved, reference)).values()
        assert values == [[7]] * sum(counts)
        for home, _ in disks(place, *counts):
            assert "step_00000007" in names(home / "ckpt") or home.name == "home_1", names(home / "ckpt")
        kept = place / "kept"
        shutil.copytree(place / disks(place, 1)[0][0].name, kept)
        for number, (kind, other_counts) in enumerate(others):
            again = folder / f"{saved}_{number}"
            homes = disks(again, *other_counts)
            shutil.copytree(kept, homes[-1][0])
            values = start(again, homes, load_kind(kind, reference)).values()
            assert values == [[7, [], [7, 8]]] * sum(other_counts), (saved, kind, other_counts, values)
            for home, _ in homes:
                with no_faults_in(home / "ckpt"):
                    assert "step_00000007" in names(home / "ckpt")


def on_gpus(folder: Path) -> None:
    """Two GPUs over NCCL on separate disks, and back on one GPU, on CPUs."""
    for saved in ("full", "ddp"):
        place = folder / saved
        reference = place / "reference.pt"
        assert start(place, separate(place, 1, 1), save_kind(saved, reference, None)).values() == [[7]] * 2
        cases: list[tuple[str, tuple[int, ...], str | None]]
        cases = [("full", (1, 1), None), ("ddp", (2,), None), ("plain", (1,), None), ("full", (1, 1), "gloo")]
        for number, (kind, counts, backend) in enumerate(cases):
            again = folder / f"{saved}_{number}"
            homes = separate(again, *counts)
            shutil.copytree(place / "home_0", homes[-1][0])
            values = start(again, homes, load_kind(kind, reference, backend)).values()
            assert values == [[7, [], [7, 8]]] * sum(counts), (saved, kind, counts, values)


def untouched(folder: Path) -> None:
    """An optimizer that took no step yet stays so through a save and a load."""

    def work() -> Any:
        join()
        parts = build("full", seed=1)
        before = differences("", snapshot(parts), snapshot(parts))
        taken = snapshot(parts)
        checkpoints = Checkpointer(CKPT)
        checkpoints.save(1, parts)
        before += differences("", snapshot(parts), taken)
        other = build("full", seed=2)
        train(other, 2, seed=1)
        checkpoints.load(other)
        return before + differences("", snapshot(other), taken)

    assert start(folder, shared(folder, 2), work).values() == [[], []]


def handed_out(folder: Path) -> None:
    """Whoever has the newest checkpoint hands it to the others, whatever its place among the nodes."""
    one, two, three = folder / "one", folder / "two", folder / "three"
    assert start(folder, [(one, 1), (two, 1)], save_steps(5, 6)).values() == [[5, 6]] * 2
    assert names(one / "ckpt") == ["step_00000005", "step_00000006"]
    assert names(two / "ckpt") == []
    # the old head is second now; the third node is new; the first two nodes share a disk
    (folder / "link").symlink_to(two)
    homes = [(two, 1), (folder / "link", 1), (one, 2), (three, 1)]
    assert start(folder, homes, load_once).values() == [[6, [6.0], [5, 6]]] * 5
    assert names(two / "ckpt") == names(three / "ckpt") == ["step_00000006"]
    # a node alone goes on from its own copy, and what it saves is newer than what the others have of a higher step
    assert start(folder, [(three, 1)], save_steps(2)).values() == [[6, 2]]
    assert start(folder, homes, load_once).values() == [[2, [2.0], [5, 6, 2]]] * 5
    # two nodes of one step out of different runs: one of them wins everywhere
    assert start(folder, [(one, 1)], save_steps(9)).values() == [[6, 2, 9]]
    assert start(folder, [(two, 1)], save_steps(9)).values() == [[6, 2, 9]]
    whole = [(home / "ckpt/step_00000009/whole.json").read_bytes() for home in (one, two)]
    assert whole[0] != whole[1]
    values = start(folder, [(one, 1), (two, 1)], load_once).values()
    assert values == [[9, [9.0], [6, 2, 9]]] * 2, values
    assert len({(home / "ckpt/step_00000009/whole.json").read_bytes() for home in (one, two)}) == 1
    # right sizes, wrong bytes on one disk: the other one's copy is taken, and is there afterwards
    for path in (two / "ckpt/step_00000009").glob("*.distcp"):
        path.write_bytes(bytes(path.stat().st_size))
    ranks = start(folder, [(one, 1), (two, 1)], load_once)
    assert [value[:2] for value in ranks.values()] == [[9, [9.0]]] * 2
    assert ranks.log().count("step 9 in ~/ckpt is passed over: rank 1 on ") == 1, ranks.log()
    assert any(any(path.read_bytes()) for path in (two / "ckpt/step_00000009").glob("*.distcp"))


def damaged(folder: Path) -> None:
    """A truncated file, a missing one, a bad record: the one before is loaded, and that is said aloud."""
    homes = shared(folder, 1, 1)
    ckpt = homes[0][0] / "ckpt"
    assert start(folder, homes, save_steps(1, 2, 3)).values() == [[1, 2, 3]] * 2
    shard = max((ckpt / "step_00000003").glob("*.distcp"))
    os.truncate(shard, shard.stat().st_size - 1)
    ranks = start(folder, homes, load_once)
    assert ranks.values() == [[2, [2.0], [1, 2]]] * 2
    assert ranks.log().count(f"{ckpt}/step_00000003 is not whole: {shard.name} has ") == 1, ranks.log()
    (ckpt / "step_00000002/.metadata").unlink()
    (ckpt / ".saving_step_00000004.dead").mkdir()
    (ckpt / ".saving_step_00000004.dead/__0_0.distcp").write_bytes(b"half")
    ranks = start(folder, homes, load_once)
    assert ranks.values() == [[1, [1.0], [1]]] * 2
    assert names(ckpt) == ["step_00000001", "step_00000002", "step_00000003"]
    # saved again, the damaged ones make room
    assert start(folder, homes, save_steps(2, 3, 4, keep=2)).values() == [[3, 4]] * 2
    assert names(ckpt) == ["step_00000003", "step_00000004"]
    assert start(folder, homes, save_steps(5, keep=3)).values() == [[3, 4, 5]] * 2
    for path in (ckpt / "step_00000005").glob("*.distcp"):
        path.write_bytes(bytes(path.stat().st_size))
    ranks = start(folder, homes, load_once)
    assert [value[:2] for value in ranks.values()] == [[4, [4.0]]] * 2
    assert "step 5 in ~/ckpt is passed over: rank 0 on " in ranks.log()
    (ckpt / "step_00000005/whole.json").write_text("{")
    (ckpt / "step_00000004/whole.json").write_text("{")
    # right sizes, wrong bytes: an error on all ranks, not a start with half a state
    for path in (ckpt / "step_00000003").glob("*.distcp"):
        path.write_bytes(bytes(path.stat().st_size))

    def work() -> Any:
        join()
        return caught(lambda: Checkpointer(CKPT).load(counting_parts()))

    (one, other) = start(folder, homes, work).values()
    assert one == other
    assert one.startswith("load step 3 from ~/ckpt: rank"), one
    # none that is whole is not the same as none: nothing begins at 0, and nothing is saved over them
    for path in ckpt.glob("step_*/whole.json"):
        path.write_text("{")
    (one, other) = start(folder, homes, work).values()
    assert one == other
    assert one.startswith("load from ~/ckpt: there are checkpoints, but none that is whole: "), one


def branches(folder: Path) -> None:
    """After one that was passed over, what is saved next is the newest, and the next start goes on from it."""
    homes = shared(folder, 1, 1)
    ckpt = homes[0][0] / "ckpt"
    assert start(folder, homes, save_steps(10, 20)).values() == [[10, 20]] * 2
    shard = max((ckpt / "step_00000020").glob("*.distcp"))
    good = shard.read_bytes()
    shard.write_bytes(bytes(len(good)))

    def work() -> Any:
        join()
        checkpoints = Checkpointer(CKPT)
        begun = checkpoints.load(counting_parts())
        checkpoints.save(15, counting_parts())
        return begun

    assert start(folder, homes, work).values() == [10, 10]
    shard.write_bytes(good)
    assert [value[0] for value in start(folder, homes, load_once).values()] == [15, 15]
