"""In what numbers the model computes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from workload.schema import Config

DTYPES = {"none": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_autocast(config: Config, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Build the context of a forward pass; FSDP casts by itself."""
    kind = config.training.mixed_precision
    if kind == "none" or config.distributed.mode == "fsdp":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[kind])


def build_scaler(config: Config, device: torch.device) -> torch.amp.GradScaler:
    """Build the scaler that keeps small gradients of fp16 above 0; with all else it does nothing."""
    return torch.amp.GradScaler(device.type, enabled=config.training.mixed_precision == "fp16")
