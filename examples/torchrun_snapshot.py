"""Plain PyTorch under torchrun: DDP, a snapshot an epoch, and after a crash the next start goes on from it.

One process of each node writes the snapshot, so that a node with a disk of its own has one too. At the start the
newest one, whoever holds it, is handed to all: disks may be shared or not, and a node may be new.
"""

from __future__ import annotations

import argparse
import io
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANK, LOCAL_RANK = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
DEVICE = torch.device("cuda", LOCAL_RANK) if torch.cuda.is_available() else torch.device("cpu")


def build_data(samples: int, seed: int) -> TensorDataset:
    """Build inputs (samples, 8) and targets (samples, 1) that follow one rule, whatever the seed."""
    inputs = torch.randn(samples, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, torch.tanh(inputs @ torch.linspace(-1, 1, 8)).unsqueeze(1))


def write_snapshot(path: Path, state: dict[str, Any]) -> None:
    """Write the snapshot so that the file is the old one or the new one, even when the power goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{RANK}")  # on a shared disk every node writes one
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_snapshot(data: bytes) -> dict[str, Any]:
    """Load what `write_snapshot` wrote."""
    return dict(torch.load(io.BytesIO(data), map_location=DEVICE, weights_only=True))


def fetch_newest(path: Path) -> dict[str, Any] | None:
    """Give every rank the newest snapshot that any node holds; None when no node holds one."""
    mine = path.read_bytes() if path.exists() else b""
    told = [torch.zeros(2, dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(told, torch.tensor([load_snapshot(mine)["EPOCHS_RUN"] if mine else 0, len(mine)]))
    pairs = [(int(epochs), int(size)) for epochs, size in told]
    newest = max(pairs)
    if not any(newest):
        return None
    source = pairs.index(newest)
    data = bytearray(mine if source == RANK else newest[1])
    dist.broadcast(torch.frombuffer(data, dtype=torch.uint8), source)  # into the bytearray itself
    return load_snapshot(bytes(data))


@torch.no_grad()
def measure_loss(model: nn.Module) -> float:
    """Measure the loss on data that is not trained on."""
    inputs, targets = (part.to(DEVICE) for part in build_data(512, seed=2).tensors)
    return nn.functional.mse_loss(model(inputs), targets).item()


def is_same_everywhere(model: nn.Module) -> bool:
    """Tell whether all ranks hold the same weights, to the last bit."""
    low = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    high = low.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return torch.equal(low, high)


def train(epochs: int, path: Path) -> None:
    """Train to the end, from the newest snapshot on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first_loss, first_epoch = measure_loss(model), 0
    if snapshot := fetch_newest(path):
        model.load_state_dict(snapshot["MODEL_STATE"])
        optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])
        first_epoch = snapshot["EPOCHS_RUN"]
    print(f"rank {RANK} starts at epoch {first_epoch}", flush=True)
    ddp = DistributedDataParallel(model)
    data = build_data(512, seed=1)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    for epoch in range(first_epoch, epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(ddp(inputs.to(DEVICE)), targets.to(DEVICE)).backward()
            optimizer.step()
        if LOCAL_RANK == 0:
            state = {"MODEL_STATE": model.state_dict(), "OPTIMIZER_STATE": optimizer.state_dict()}
            write_snapshot(path, {**state, "EPOCHS_RUN": epoch + 1})
        if RANK == 0:
            print(f"epoch {epoch + 1} of {epochs}", flush=True)
    if not is_same_everywhere(model):
        raise RuntimeError("the ranks hold different weights")
    if RANK == 0:
        losses = f"{first_loss:.4f} -> {measure_loss(model):.4f}"
        print(f"loss {losses}, the same on all {dist.get_world_size()} ranks", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--snapshot", type=Path, default=Path("~/.aorta/checkpoints/torchrun_snapshot.pt"))
    words = parser.parse_args()
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo")
    train(words.epochs, words.snapshot.expanduser())
    dist.destroy_process_group()
