"""The same under the names that other scripts know, with what their callers expect."""

from __future__ import annotations

import torch

from orchestrator.distributed import collectives, group
from orchestrator.distributed.errors import DistributedError
from orchestrator.distributed.place import NodeInfo


def get_node_info() -> dict[str, int]:
    """Give node_info() as a dictionary of rank, local_rank, node_rank, world_size and local_world_size."""
    info = _find_info()
    if info is None:
        return {"node_rank": 0, "local_rank": 0, "local_world_size": 1, "world_size": 1, "rank": 0}
    return {
        "node_rank": info.node_rank,
        "local_rank": info.local_rank,
        "local_world_size": info.local_world_size,
        "world_size": info.world_size,
        "rank": info.rank,
    }


def is_master_process() -> bool:
    """Say is_main_process(); true without a group."""
    info = _find_info()
    return info is None or info.rank == 0


def is_master_node() -> bool:
    """Say whether this rank is on the first node; true without a group."""
    info = _find_info()
    return info is None or info.node_rank == 0


def all_reduce_tensor(tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """Do all_reduce(tensor, op); without a group the tensor itself comes back."""
    return tensor if _find_info() is None else collectives.all_reduce(tensor, op)


def gather_tensors(tensor: torch.Tensor, dst: int = 0) -> list[torch.Tensor]:
    """Do gather(tensor, dst); ranks that get nothing get an empty list."""
    return [tensor] if _find_info() is None else collectives.gather(tensor, dst) or []


def setup_distributed(backend: str | None = None) -> tuple[int, int, int, int]:
    """Do setup(backend, single_process=True); give rank, world size, local rank and node rank."""
    info = group.setup(backend, single_process=True)
    return info.rank, info.world_size, info.local_rank, info.node_rank


cleanup_distributed = group.cleanup


def _find_info() -> NodeInfo | None:
    try:
        return group.current().info
    except DistributedError:
        return None
