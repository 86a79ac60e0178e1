"""A state whose content tells its step, and the short trainings that the scenes of checkpoints are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from checkpoint_models import join
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from orchestrator.distributed.checkpoint import Checkpointer
from orchestrator.distributed.errors import DistributedError
from orchestrator.distributed.group import current

CKPT = "~/ckpt"


def shared(folder: Path, *counts: int) -> list[tuple[Path, int]]:
    return [(folder / "home", count) for count in counts]


def separate(folder: Path, *counts: int) -> list[tuple[Path, int]]:
    return [(folder / f"home_{node}", count) for node, count in enumerate(counts)]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


def caught(work: Any) -> str:
    try:
        work()
    except DistributedError as error:
        return str(error)
    return "no error"


class Counter:
    """A state whose content tells its step, so that a mixture of two is seen."""

    def __init__(self, size: int) -> None:
        self.value = torch.zeros(size)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def counting_parts() -> dict[str, Any]:
    net = nn.Linear(64, 64, bias=False)
    if current().info.world_size > 1:
        fully_shard(net, mesh=init_device_mesh("cpu", (current().info.world_size,)))
    return {"model": net, "counter": Counter(1000), "plain": {"step": 0}}


def fill(parts: dict[str, Any], step: int) -> None:
    with torch.no_grad():
        parts["model"].weight.fill_(float(step))
    parts["counter"].value.fill_(float(step))
    parts["plain"]["step"] = step


def read_back(parts: dict[str, Any]) -> list[float]:
    weight = parts["model"].weight
    local = weight.to_local() if hasattr(weight, "to_local") else weight
    return sorted({*local.flatten().tolist(), *parts["counter"].value.tolist(), float(parts["plain"]["step"])})


def save_steps(*steps: int, keep: int = 3) -> Any:
    def work() -> Any:
        join()
        parts = counting_parts()
        checkpoints = Checkpointer(CKPT, keep=keep)
        checkpoints.load(parts)
        for step in steps:
            fill(parts, step)
            checkpoints.save(step, parts)
        return checkpoints.steps()

    return work


def load_once() -> Any:
    join()
    parts = counting_parts()
    checkpoints = Checkpointer(CKPT, keep=2)
    step = checkpoints.load(parts)
    return [step, read_back(parts), checkpoints.steps()]
