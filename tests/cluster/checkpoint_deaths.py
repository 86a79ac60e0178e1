"""Scenes of deaths, full disks and refusals; they run as those of checkpoint_scenes do."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from checkpoint_counting import (
    CKPT,
    Counter,
    caught,
    counting_parts,
    fill,
    load_once,
    names,
    read_back,
    save_steps,
    separate,
    shared,
)
from checkpoint_models import join
from checkpoint_ranks import no_faults_in, start
from torch import nn
from torch.distributed.fsdp import fully_shard

from orchestrator.distributed.checkpoint import Checkpointer
from orchestrator.distributed.group import current


def save_for_ever() -> Any:
    join()
    parts = counting_parts()
    checkpoints = Checkpointer(CKPT, keep=2)
    step = checkpoints.load(parts)
    assert step == 0 or read_back(parts) == [float(step)], (step, read_back(parts))
    print("loaded", step, flush=True)
    while True:
        step += 1
        fill(parts, step)
        checkpoints.save(step, parts)
        print("saved", step, flush=True)


def last_number(word: str, log: str) -> int:
    return max((int(line.split()[1]) for line in log.splitlines() if line.startswith(f"{word} ")), default=0)


def kill_tries(folder: Path, budget_s: float, least: int, seed: int) -> None:
    """Kill one or all ranks at a random moment, start again: the last save that anybody saw return is there."""
    chance = random.Random(seed)
    end = time.monotonic() + budget_s
    tries = {"shared": 0, "separate": 0}
    stood = {"shared": 0, "separate": 0}
    while time.monotonic() < end or min(tries.values()) < least:
        name = min(tries, key=lambda one: tries[one])
        place = folder / name
        homes = shared(place, 1, 1) if name == "shared" else separate(place, 1, 1)
        chance.shuffle(homes)  # the order of the nodes changes too
        ranks = start(place, homes, save_for_ever)
        begun = time.monotonic()
        while "saved" not in ranks.log() and time.monotonic() - begun < 30 and not ranks.reap():
            time.sleep(0.002)
        assert "saved" in ranks.log(), ranks.log()
        time.sleep(chance.uniform(0, 0.15))
        ranks.kill(chance.choice([[0], [1], [0, 1]]))
        time.sleep(0.02)
        ranks.kill()
        ranks.wait()
        log = ranks.log()
        seen = last_number("saved", log)
        assert last_number("loaded", log) >= stood[name], (stood, log)
        values = start(place, homes, load_once).values()
        (step, content, _), other = values
        assert values[0] == other, values
        assert content == [float(step)], values
        assert seen <= step <= seen + 1, (seen, values)
        stood[name] = step
        tries[name] += 1
        for home, _ in homes:
            with no_faults_in(home / "ckpt"):
                assert len(names(home / "ckpt")) <= 3, names(home / "ckpt")
        shutil.rmtree(ranks.folder)
    print("tries", tries, "last steps", stood, flush=True)


def killed(folder: Path) -> None:
    kill_tries(folder, budget_s=8, least=4, seed=6)


def killed_long(folder: Path) -> None:
    kill_tries(folder, budget_s=240, least=100, seed=int(os.environ.get("SEED", "1")))


def full_disk(folder: Path) -> None:
    """No room on one of two disks: an error on all ranks, nothing half left, the older checkpoint stands."""
    for small in (0, 1):
        place = folder / f"small_{small}"
        homes = separate(place, 1, 1)
        mount = homes[small][0] / "ckpt"
        mount.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mount], check=True)
        try:
            assert start(place, homes, save_steps(1)).values() == [[1]] * 2

            def work() -> Any:
                join()
                parts = {**counting_parts(), "big": {"value": torch.ones(2 << 20)}}
                if current().info.rank == 1:
                    parts["big"]["value"] = torch.zeros(1)
                checkpoints = Checkpointer(CKPT)
                net = nn.Linear(1024, 1024)
                fully_shard(net)
                error = caught(lambda: checkpoints.save(2, {**parts, "large": net}))
                return [error, checkpoints.steps()]

            (error, steps), other = start(place, homes, work).values()
            assert [error, steps] == other
            assert steps == [1]
            assert error.startswith("save step 2 in ~/ckpt: rank"), error
            assert "MiB are free in" in error, error
            for home, _ in homes:
                with no_faults_in(home / "ckpt"):
                    assert names(home / "ckpt") in (["step_00000001"], [])
            assert start(place, homes, load_once).values() == [[1, [1.0], [1]]] * 2
        finally:
            subprocess.run(["umount", mount], check=True)


def two_runs(folder: Path) -> None:
    """A second live run on a directory is refused on all its ranks; after the death of the first it may."""
    homes = shared(folder, 1, 1)

    def hold() -> Any:
        join()
        Checkpointer(CKPT)
        checkpoints = Checkpointer(CKPT)
        print("holds", flush=True)
        is_worker = not os.fork()  # a data-loader worker outlives its rank
        end = time.monotonic() + 60
        while time.monotonic() < end and not (folder / "over").exists():
            time.sleep(0.05)
        if is_worker:
            os._exit(0)
        checkpoints.close()

    def refused() -> Any:
        join()
        return caught(lambda: Checkpointer(CKPT))

    first = start(folder, homes, hold)
    while first.log().count("holds") < 2:
        assert not first.reap(), first.log()
        time.sleep(0.01)
    one, other = start(folder, homes, refused).values()
    assert one == other
    assert "another live run saves there" in one, one
    assert f"process {first.pids[0]} on " in one, one
    first.kill()
    first.wait()
    assert start(folder, homes, load_once).values()[0][0] == 0
    (folder / "over").touch()


def refusals(folder: Path) -> None:
    """What is wrong on one rank, or in the parts, is one error on all ranks that says what to do."""
    homes = separate(folder, 1, 1)
    (folder / "home_1").mkdir(parents=True)
    (folder / "home_1/file").write_text("")

    def work() -> Any:
        join()
        info = current().info
        told = [caught(lambda: Checkpointer("~/file/below"))]
        os.environ["AORTA_OUTPUT_DIR"] = str(folder)
        told.append(caught(lambda: Checkpointer(CKPT)))
        del os.environ["AORTA_OUTPUT_DIR"]
        told.append(caught(lambda: Checkpointer("~/.aorta/runs/r/0/ckpt")))
        told.append(caught(lambda: Checkpointer(CKPT, keep=0)))
        checkpoints = Checkpointer(CKPT)
        parts = counting_parts()
        told.append(caught(lambda: checkpoints.save(0, parts)))
        told.append(caught(lambda: checkpoints.save("1", parts)))  # type: ignore[arg-type]
        told.append(caught(lambda: checkpoints.save(1 + info.rank, parts)))
        told.append(caught(lambda: checkpoints.save(1, {})))
        told.append(caught(lambda: checkpoints.save(1, {"a.b": {}})))
        told.append(caught(lambda: checkpoints.save(1, {"a": 3})))
        lone = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
        told.append(caught(lambda: checkpoints.save(1, {**parts, "optimizer": lone})))
        failing = Counter(3)
        if info.rank == 0:
            failing.state_dict = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        told.append(caught(lambda: checkpoints.save(1, {**parts, "failing": failing})))
        assert checkpoints.steps() == []
        checkpoints.save(1, parts)
        told.append(caught(lambda: checkpoints.load({**parts, "more": {}})))
        told.append(caught(lambda: checkpoints.load({"model": parts["model"]})))
        wide = torch.nn.Linear(64, 65, bias=False)
        told.append(caught(lambda: checkpoints.load({**parts, "model": wide})))
        told.append(caught(lambda: checkpoints.load({**parts, "model": torch.nn.Linear(64, 64)})))
        return told

    one, other = start(folder, homes, work).values()
    assert one == other, (one, other)
    for home in ("home_0", "home_1"):
        with no_faults_in(folder / home / "ckpt"):
            assert names(folder / "home_0/ckpt") == ["step_00000001"]
    host = os.uname().nodename
    expected = [
        f"rank 1 on {host}: {folder}/home_1/file/below: Not a directory",
        "it lies in the run's outputs",
        "it lies in the folder of a run",
        "keep is 0",
        "the step is 0: steps are counted from 1",
        "the step is '1': steps are counted from 1",
        "the ranks are not at one step: [1, 2]",
        "there are no parts",
        "a part is called 'a.b'",
        "the part 'a' is int",
        "the optimizer 'optimizer' has a parameter of shape (2,) that no module",
        f"save step 1 in ~/ckpt: rank 0 on {host}: ZeroDivisionError: division by zero",
        "the parts: not in the checkpoint: more",
        "the parts: only in the checkpoint: counter, plain",
        "model.weight has the shape (65, 64), in the checkpoint (64, 64)",
        "the module 'model': not in the checkpoint: model.bias",
    ]
    assert len(one) == len(expected)
    for text, words in zip(one, expected, strict=True):
        assert words in text, (words, text)
