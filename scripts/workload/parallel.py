"""Spreads the model over the ranks: a whole copy on each (DDP), or shards (FSDP2)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workload.precision import DTYPES

if TYPE_CHECKING:
    from orchestrator.distributed import NodeInfo
    from workload.schema import Config


class Parallel(NamedTuple):
    """A model that is spread over the ranks."""

    model: nn.Module
    """What trains, and what is saved."""
    evaluated: nn.Module
    """What is asked without gradients."""

    def accumulate(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Build the context of one batch of a step: gradients travel in the last one alone."""
        if isinstance(self.model, DistributedDataParallel):
            return contextlib.nullcontext() if is_last else self.model.no_sync()
        self.model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        return contextlib.nullcontext()


def spread(model: nn.Module, config: Config, info: NodeInfo) -> Parallel:
    """Spread the model, a collective."""
    if config.distributed.mode == "fsdp":
        sharded = _shard(model, config, info)
        return Parallel(sharded, sharded)
    model = model.to(info.device)
    settings = config.distributed
    whole = DistributedDataParallel(
        model,
        device_ids=[info.device.index] if info.device.type == "cuda" else None,
        bucket_cap_mb=settings.bucket_cap_mb,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
    )
    return Parallel(whole, model)


def _shard(model: nn.Module, config: Config, info: NodeInfo) -> nn.Module:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard  # noqa: PLC0415 - since 2.6

    words: dict[str, Any] = {
        "mesh": build_mesh(config.fsdp.sharding_strategy, info),
        "reshard_after_forward": config.fsdp.sharding_strategy in ("full_shard", "hybrid_shard"),
    }
    precise = config.training.mixed_precision == "none"
    words["mp_policy"] = MixedPrecisionPolicy(
        param_dtype=None if precise else DTYPES[config.training.mixed_precision],
        reduce_dtype=DTYPES[config.fsdp.reduce_dtype],
    )
    if config.fsdp.cpu_offload:
        words["offload_policy"] = CPUOffloadPolicy()
    if config.fsdp.wrap == "block":
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, **words)
    fully_shard(model, **words)
    return model


def build_mesh(strategy: str, info: NodeInfo) -> Any:
    """Build the mesh of ranks that a strategy shards over and replicates across, a collective."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - not before the group is joined

    if strategy in ("full_shard", "shard_grad_op"):
        return init_device_mesh(info.device.type, (info.world_size,), mesh_dim_names=("shard",))
    # Ranks of a node follow each other, so a row of the mesh is a node: weights are gathered inside of it, and only
    # gradients, already cut into shards, go from node to node.
    shape = (info.world_size, 1) if strategy == "no_shard" else (info.node_count, info.local_world_size)
    return init_device_mesh(info.device.type, shape, mesh_dim_names=("replicate", "shard"))


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Count the numbers of all weights, and of those that lie on this rank."""
    whole = sum(weight.numel() for weight in model.parameters())
    mine = 0
    for weight in model.parameters():
        local = getattr(weight, "to_local", None)
        part: torch.Tensor = weight if local is None else local()
        mine += part.numel()
    return whole, mine
