"""Where a rank stands among the others, out of the variables that torchrun gives it and what the ranks tell each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from orchestrator.distributed.errors import DistributedError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torch needs to join a group; the other variables have a fall-back."""


@dataclass(frozen=True)
class NodeInfo:
    """One rank's place: nodes are counted in the order of the node list, ranks over all nodes, local ranks on one."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_world_size: int
    """Ranks on this node; other nodes may have more or fewer."""
    node_count: int
    hostnames: tuple[str, ...]
    """One a node, by node rank."""
    host: str
    device: torch.device
    backend: str
    """What carries the tensors of this rank's device: nccl, gloo, mpi; empty without a group."""


@dataclass(frozen=True)
class Start:
    """What the environment says of a rank, before anything is joined."""

    rank: int
    world_size: int
    local_rank: int | None
    node_rank: int | None


def read_start() -> Start | None:
    """Read the variables; None when this process was not started as a rank at all.

    Raises:
        DistributedError: some are missing, or are no numbers.
    """
    if not any(name in os.environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return None
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        raise DistributedError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set, though other variables of a rank are: "
            "start the script with aorta-launch or torchrun, or give all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    _read_number("MASTER_PORT")
    start = Start(
        rank=_read_number("RANK") or 0,
        world_size=_read_number("WORLD_SIZE") or 0,
        local_rank=_read_number("LOCAL_RANK"),
        node_rank=_first_of(_read_number("AORTA_NODE_RANK"), _read_number("GROUP_RANK")),
    )
    if start.rank >= start.world_size:
        raise DistributedError(
            f"RANK is {start.rank} and WORLD_SIZE {start.world_size}: ranks go from 0 to WORLD_SIZE - 1"
        )
    return start


def _first_of(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def _read_number(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise DistributedError(f"{name} is {text!r}, not a number: start the script with aorta-launch or torchrun")
    return int(text)


def find_device(local_rank: int) -> torch.device:
    """Find the GPU of a local rank, or the CPU where there is none; ROCm's GPUs answer to cuda.

    Raises:
        DistributedError: there are GPUs, but fewer than local ranks.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise DistributedError(
            f"local rank {local_rank} on {socket.gethostname()} has no GPU: this node shows {count}; "
            "start fewer processes here, or look at CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES)"
        )
    return torch.device("cuda", local_rank)


@dataclass(frozen=True)
class Word:
    """What a rank tells the others of itself."""

    host: str
    node_rank: int | None
    local_rank: int | None
    boot_id: str = ""
    """Tells cloned machines with one host name apart."""
    backend: str = ""
    """What it would take; all have to take the same."""


def build_word(start: Start, backend: str = "") -> Word:
    """Build what this rank tells the others."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot_id = ""
    return Word(socket.gethostname(), start.node_rank, start.local_rank, boot_id, backend)


def check_backends(words: Sequence[Word]) -> None:
    """Refuse ranks that would take different backends: one that sees no GPU would leave the others waiting in NCCL.

    Raises:
        DistributedError: they differ; it names a rank of each.
    """
    first: dict[str, int] = {}
    for rank, word in enumerate(words):
        first.setdefault(word.backend, rank)
    if len(first) > 1:
        takes = [f"rank {rank} on {words[rank].host} takes {name}" for name, rank in first.items()]
        raise DistributedError(
            f"the ranks are not alike: {', '.join(takes)}. Whoever takes gloo sees no GPU: look at nvidia-smi (rocm-smi) "
            "and CUDA_VISIBLE_DEVICES there, or ask for gloo on all of them"
        )


def build_info(start: Start, words: Sequence[Word], device: torch.device, backend: str) -> NodeInfo:
    """Build a rank's place from what all ranks, in rank order, told of themselves."""
    nodes = number_nodes(words)
    node_rank = nodes[start.rank]
    here = [rank for rank, node in enumerate(nodes) if node == node_rank]
    local_rank = start.local_rank if start.local_rank is not None else here.index(start.rank)
    hosts: dict[int, str] = {}
    for rank, node in enumerate(nodes):
        hosts.setdefault(node, words[rank].host)
    return NodeInfo(
        rank=start.rank,
        local_rank=local_rank,
        node_rank=node_rank,
        world_size=start.world_size,
        local_world_size=len(here),
        node_count=len(hosts),
        hostnames=tuple(hosts[node] for node in sorted(hosts)),
        host=words[start.rank].host,
        device=device,
        backend=backend,
    )


def number_nodes(words: Sequence[Word]) -> list[int]:
    """Give the node rank of every rank: as it was told, else hosts counted in the order of their first rank."""
    told = [word.node_rank for word in words if word.node_rank is not None]
    if len(told) == len(words):
        numbers = sorted(set(told))
        return [numbers.index(node) for node in told]
    machines = list(dict.fromkeys((word.host, word.boot_id) for word in words))
    return [machines.index((word.host, word.boot_id)) for word in words]
