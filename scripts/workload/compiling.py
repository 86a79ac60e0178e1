"""Compiles each block; where that fails, on any rank, all run the model as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from orchestrator.distributed import all_gather_object
from workload.precision import build_autocast

if TYPE_CHECKING:
    from workload.models import RankingTransformer, Transformer
    from workload.samples import Batch
    from workload.schema import Config


def compile_blocks(model: Transformer | RankingTransformer, config: Config, batch: Batch) -> str:
    """Compile the blocks and try them on a batch, a collective; give why they run uncompiled, or an empty text."""
    settings = config.compile
    for block in model.blocks:
        # The forward alone: hooks that FSDP adds later stay outside, and names of weights stay as they are.
        block.forward = torch.compile(
            block.forward,
            backend=settings.backend,
            mode=settings.mode if settings.backend == "inductor" else None,
            fullgraph=settings.fullgraph,
            dynamic=settings.dynamic,
        )
    troubles = all_gather_object(_try(model, config, batch))
    model.zero_grad(set_to_none=True)
    failed = [f"rank {rank}: {trouble}" for rank, trouble in enumerate(troubles) if trouble]
    if not failed:
        return ""
    for block in model.blocks:
        del block.forward  # the class's own shows again
    return failed[0]


def _try(model: Any, config: Config, batch: Batch) -> str:
    device = next(model.parameters()).device
    try:
        # As it will run: what is compiled here is used again.
        with build_autocast(config, device):
            outputs = model(*[part.to(device) for part in batch.inputs])
            loss, _ = model.compute_loss(outputs, batch.targets.to(device))
        loss.backward()
    except Exception as error:  # noqa: BLE001 - compilers fail with anything
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        return f"{type(error).__name__}: {first}"
    return ""
