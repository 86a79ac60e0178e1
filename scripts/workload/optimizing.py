"""The optimizer that the config names, and the limit of its gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from workload.schema import Optimizer


def build_optimizer(settings: Optimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Build the optimizer."""
    if settings.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    first, second = settings.betas
    return kind(parameters, lr=settings.lr, betas=(first, second), eps=settings.eps, weight_decay=settings.weight_decay)


def limit_gradients(parameters: list[nn.Parameter], largest: float) -> Tensor:
    """Give the norm of all gradients together, of all shards too, and scale them down to the largest; 0: as they are."""
    # A limit without an end scales by 1: what it costs is small beside a backward pass.
    norm: Tensor = nn.utils.clip_grad_norm_(parameters, largest or float("inf"))
    # Of sharded gradients it is a part on each rank.
    whole = getattr(norm, "full_tensor", None)
    return norm if whole is None else whole()
