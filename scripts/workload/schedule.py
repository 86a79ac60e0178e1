"""The learning rate of each step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workload.schema import Scheduler


def learning_rate(step: int, peak: float, settings: Scheduler, steps: int) -> float:
    """Rise to the peak, then fall to a share of it; steps count from 1, and the rise ends with the run at the latest."""
    total = settings.total_steps or steps
    rise = min(settings.warmup_steps, total)
    if step <= rise:
        return peak * step / rise
    if settings.name == "constant":
        return peak
    gone = min((step - rise) / (total - rise), 1.0) if total > rise else 1.0
    left = 1 - gone if settings.name == "linear" else (1 + math.cos(math.pi * gone)) / 2
    return peak * (settings.min_lr_ratio + (1 - settings.min_lr_ratio) * left)
