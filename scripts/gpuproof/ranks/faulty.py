"""A small training loop whose last rank breaks in one way: faulty.py oom|hang|kill|work."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

ASKED_GIB = 1000
"""More than any card has."""
HELD_GIB = 4
COLLECTIVE_LIMIT_S = 15
NEVER_S = 600


def take_memory(gib: int, device: torch.device) -> torch.Tensor:
    """Take so many GiB."""
    return torch.empty(gib << 30, dtype=torch.uint8, device=device)


def step(data: torch.Tensor, number: int) -> None:
    """One step as all ranks do it."""
    dist.all_reduce(data)
    data.div_(dist.get_world_size())
    print(f"step {number}", flush=True)


def main() -> None:
    """Make a few steps, break, and go on where one can."""
    way = sys.argv[1]
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=COLLECTIVE_LIMIT_S))
    data = torch.ones(1 << 20, device=device)
    held = [take_memory(HELD_GIB, device)] if cuda else []
    for number in range(3):
        step(data, number)
    is_last = dist.get_rank() == dist.get_world_size() - 1
    if is_last and way == "oom":
        held.append(take_memory(ASKED_GIB, device))
    if is_last and way == "hang":
        fetch_the_next_shard()
    if is_last and way == "kill":
        if cuda:
            torch.cuda.synchronize()
        time.sleep(2)  # whoever samples the memory sees what is held
        print(f"died at {time.time():.3f}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    for number in range(3, 6):
        step(data, number)
        if cuda:
            torch.cuda.synchronize()
    dist.destroy_process_group()


def fetch_the_next_shard() -> None:
    """Wait for what never comes, while the others are in their collective."""
    time.sleep(NEVER_S)


main()
