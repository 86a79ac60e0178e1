"""Each rank's place, and the group that all ranks join."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed

TIMEOUT = timedelta(seconds=120)
"""Torch's own is up to 30 minutes: too long to wait for a rank that will not come."""


@dataclass(frozen=True)
class Place:
    """Where one rank stands."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    host: str
    device: torch.device
    backend: str


def join_group() -> Place:
    """Join the group that torchrun describes in the environment, say where this rank stands."""
    place = _find_place()
    if "RANK" in os.environ:
        distributed.init_process_group(
            place.backend, timeout=TIMEOUT, device_id=place.device if place.device.type == "cuda" else None
        )
    else:
        # Started by hand without torchrun: a group of one, with nothing to meet.
        distributed.init_process_group(place.backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    print(
        f"rank {place.rank} of {place.world_size} on node {place.node_rank} ({place.host}): "
        f"{place.device}, {place.backend}\n",
        end="",  # one write, so that no other rank's line comes between text and end
        flush=True,
    )
    return place


def _find_place() -> Place:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():  # ROCm answers to the same name
        if local_rank >= torch.cuda.device_count():
            raise RuntimeError(
                f"local rank {local_rank} has no GPU: this node shows {torch.cuda.device_count()}; "
                "start fewer processes here"
            )
        device, backend = torch.device("cuda", local_rank), "nccl"
        torch.cuda.set_device(device)
    return Place(
        rank=int(os.environ.get("RANK", "0")),
        local_rank=local_rank,
        node_rank=int(os.environ.get("AORTA_NODE_RANK") or os.environ.get("GROUP_RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        host=socket.gethostname(),
        device=device,
        backend=backend,
    )
