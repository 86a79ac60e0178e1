"""A small library for scripts that train on several nodes: PyTorch and the standard library are all that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.distributed.aliases import (
    all_reduce_tensor,
    cleanup_distributed,
    gather_tensors,
    get_node_info,
    is_master_node,
    is_master_process,
    setup_distributed,
)
from orchestrator.distributed.collectives import (
    all_gather,
    all_gather_object,
    all_reduce,
    broadcast,
    broadcast_object,
    gather,
    gather_object,
    reduce_scatter,
)
from orchestrator.distributed.errors import DistributedError
from orchestrator.distributed.group import cleanup, current, find_rank, setup
from orchestrator.distributed.place import NodeInfo
from orchestrator.distributed.samples import RankLoader, RankSampler, dataloader, sampler
from orchestrator.distributed.session import distributed
from orchestrator.distributed.stop import stop_requested
from orchestrator.distributed.waiting import barrier, main_process_first, node_main_first

if TYPE_CHECKING:
    from orchestrator.distributed.checkpoint import Checkpointer

__all__ = [
    "Checkpointer",
    "DistributedError",
    "NodeInfo",
    "RankLoader",
    "RankSampler",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_reduce_tensor",
    "barrier",
    "broadcast",
    "broadcast_object",
    "cleanup",
    "cleanup_distributed",
    "dataloader",
    "distributed",
    "gather",
    "gather_object",
    "gather_tensors",
    "get_node_info",
    "is_main_process",
    "is_master_node",
    "is_master_process",
    "is_node_main",
    "main_process_first",
    "node_info",
    "node_main_first",
    "reduce_scatter",
    "sampler",
    "setup",
    "setup_distributed",
    "stop_requested",
]


def node_info() -> NodeInfo:
    """Give this rank's place; in a group that was joined without setup every rank has to ask once.

    Raises:
        DistributedError: there is no group.
    """
    return current().info


def is_main_process() -> bool:
    """Say whether this is rank 0.

    Raises:
        DistributedError: there is no group.
    """
    return find_rank() == 0


def is_node_main() -> bool:
    """Say whether this is the first rank of its node.

    Raises:
        DistributedError: there is no group.
    """
    return current().info.local_rank == 0


def __getattr__(name: str) -> Any:
    # torch.distributed.checkpoint takes a second to import: only those pay who save.
    if name == "Checkpointer":
        from orchestrator.distributed.checkpoint import Checkpointer  # noqa: PLC0415 - see above

        return Checkpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
