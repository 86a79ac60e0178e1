"""A script for nodes that are started by hand: rank, world size and a tcp:// address on its own command line.

No torchrun: launch.agent `command` starts one such process on each node and fills the words in.
"""

from __future__ import annotations

import argparse
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


def build_batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Build the inputs (64, 8) and targets (64, 1) of one rank at one step."""
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(100_000 * rank + step))
    return inputs, torch.tanh(inputs @ torch.linspace(-1, 1, 8)).unsqueeze(1)


def average_gradients(model: nn.Module) -> None:
    """Put the mean over all ranks in place of each gradient: what DDP does, without its overlap."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def train(rank: int, steps: int, device: torch.device) -> tuple[float, float]:
    """Train, and give the mean loss over all ranks at the first and the last step."""
    torch.manual_seed(0)  # the same first weights everywhere
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = mean = 0.0
    for step in range(1, steps + 1):
        inputs, targets = (part.to(device) for part in build_batch(rank, step))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if step in (1, steps):
            dist.all_reduce(loss := loss.detach())
            mean = loss.item() / dist.get_world_size()
            first = first or mean
            if rank == 0:
                print(f"step {step} of {steps}: loss {mean:.4f}", flush=True)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    everywhere = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, weights)
    if not all(torch.equal(weights, other) for other in everywhere):
        raise RuntimeError("the ranks hold different weights")
    return first, mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist-url", required=True, help="tcp://ADDRESS:PORT of rank 0")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--gpu", type=int, default=0, help="which GPU of its node, where there is one")
    parser.add_argument("--steps", type=int, default=200)
    words = parser.parse_args()
    device = torch.device("cuda", words.gpu) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=words.dist_url,
        rank=words.rank,
        world_size=words.world_size,
        timeout=timedelta(minutes=5),
    )
    first_loss, last_loss = train(words.rank, words.steps, device)
    if words.rank == 0:
        print(f"loss {first_loss:.4f} -> {last_loss:.4f}, the same on all {words.world_size} ranks", flush=True)
    dist.destroy_process_group()
