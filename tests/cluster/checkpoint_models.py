"""What the ranks of the checkpoint tests train, and how two trainings are compared bit for bit."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo  # FSDP imports it at its first use: here once, not in every rank
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from orchestrator.distributed.group import current, setup


class Net(nn.Module):
    """Odd sizes, so that shards are uneven and some ranks have none of a tensor; a buffer; a tied weight; one unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 5)
        self.norm = nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 3)
        self.tied = nn.Linear(5, 3, bias=False)
        self.tied.weight = self.last.weight
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.relu(self.norm(self.first(value)))) + self.frozen
        return out


def build(kind: str, seed: int) -> dict[str, Any]:
    """Build the parts of a training of some kind: plain, ddp, full, hybrid or compiled."""
    torch.manual_seed(seed)
    net: nn.Module = Net().to(current().info.device)
    device = current().info.device.type
    world_size = current().info.world_size
    if kind == "ddp":
        net = DistributedDataParallel(net)
    elif kind == "full":
        fully_shard(net, mesh=init_device_mesh(device, (world_size,)))
    elif kind == "hybrid":
        fully_shard(net, mesh=init_device_mesh(device, (2, world_size // 2), mesh_dim_names=("nodes", "ranks")))
    elif kind == "compiled":
        net = DistributedDataParallel(torch.compile(net, backend="eager"))
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    groups = [{"params": trained[:2], "weight_decay": 0.0}, {"params": trained[2:], "lr": 0.02}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    place: dict[str, Any] = {"epoch": seed, "best": None, "order": torch.randperm(9), "nested": [{"x": torch.rand(2)}]}
    return {"model": net, "optimizer": optimizer, "schedule": schedule, "place": place}


def train(parts: dict[str, Any], steps: int, seed: int) -> None:
    for step in range(steps):
        torch.manual_seed(1000 * seed + 100 * step + current().info.rank)
        parts["optimizer"].zero_grad()
        parts["model"](torch.randn(4, 7).to(current().info.device)).square().mean().backward()
        parts["optimizer"].step()
        parts["schedule"].step()
        parts["place"]["epoch"] += 1


def whole(value: Any) -> Any:
    """Turn pieces into whole tensors, everywhere in a state."""
    if isinstance(value, DTensor):
        return value.full_tensor().detach().cpu().clone()
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return value


def snapshot(parts: dict[str, Any]) -> dict[str, Any]:
    """Give the state without any word of how it is spread; a collective where it is."""
    model = {
        key.replace("module.", "").replace("_orig_mod.", ""): value
        for key, value in parts["model"].state_dict().items()
    }
    taken: dict[str, Any] = whole(
        {
            "model": model,
            "optimizer": parts["optimizer"].state_dict(),
            "schedule": parts["schedule"].state_dict(),
            "place": parts["place"],
        }
    )
    return taken


def differences(path: str, one: Any, other: Any) -> list[str]:
    """Name the places where two states are not the same bits."""
    if isinstance(one, torch.Tensor):
        same = isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        return [] if same else [path]
    if isinstance(one, dict):
        if not isinstance(other, dict) or list(map(str, sorted(one, key=str))) != list(
            map(str, sorted(other, key=str))
        ):
            return [path]
        return [found for key in one for found in differences(f"{path}.{key}", one[key], other[key])]
    if isinstance(one, list):
        if not isinstance(other, list) or len(one) != len(other):
            return [path]
        return [
            found for place, inner in enumerate(one) for found in differences(f"{path}.{place}", inner, other[place])
        ]
    return [] if one == other else [path]


def join(backend: str | None = "gloo") -> None:
    torch.set_num_threads(1)
    setup(backend, timeout=30.0)
