"""The shortest good script: the helper library gives the group, the data of each rank, checkpoints and an orderly stop.

The launcher puts orchestrator.distributed on every node's PYTHONPATH; PyTorch is all that it needs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from orchestrator import distributed


def build_data(samples: int, seed: int) -> TensorDataset:
    """Build inputs (samples, 8) and targets (samples, 1) that follow one rule, whatever the seed."""
    inputs = torch.randn(samples, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, torch.tanh(inputs @ torch.linspace(-1, 1, 8)).unsqueeze(1))


@torch.no_grad()
def measure_loss(model: nn.Module, device: torch.device) -> float:
    """Measure the loss on data that is not trained on."""
    inputs, targets = (part.to(device) for part in build_data(512, seed=2).tensors)
    return nn.functional.mse_loss(model(inputs), targets).item()


def train(info: distributed.NodeInfo, epochs: int, folder: Path) -> None:
    """Train to the end, or to a TERM, from the newest checkpoint on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(info.device)
    first = measure_loss(model, info.device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    loader = distributed.dataloader(build_data(512, seed=1), batch_size=32)
    progress = {"samples": 0}  # counted over all ranks: another number of them goes on where these ended
    checkpoints = distributed.Checkpointer(folder)
    parts = {"model": ddp, "optimizer": optimizer, "progress": progress}
    step = start = checkpoints.load(parts)
    per_step, stopped = 32 * info.world_size, False
    for epoch in range(progress["samples"] // 512, epochs):
        loader.set_epoch(epoch)
        loader.set_start(progress["samples"] % 512 // per_step)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(ddp(inputs.to(info.device)), targets.to(info.device)).backward()
            optimizer.step()
            step, progress["samples"] = step + 1, min(progress["samples"] + per_step, (epoch + 1) * 512)
            if stopped := distributed.stop_requested():  # the same answer on all ranks, at the same step
                break
        checkpoints.save(step, parts)
        if distributed.is_main_process():
            print(f"step {step}, epoch {epoch + 1} of {epochs}", flush=True)
        if stopped:
            break
    sums = distributed.all_gather(nn.utils.parameters_to_vector(model.parameters()).detach().sum())
    if any(not torch.equal(sums[0], other) for other in sums):
        raise RuntimeError("the ranks hold different weights")
    if distributed.is_main_process():
        last = measure_loss(model, info.device)
        print(f"steps {start} to {step}: loss {first:.4f} -> {last:.4f}, the same on all {len(sums)} ranks", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoints", type=Path, default=Path("~/.aorta/checkpoints/distributed_train"))
    words = parser.parse_args()
    with distributed.distributed() as node_info:
        train(node_info, words.epochs, words.checkpoints.expanduser())
