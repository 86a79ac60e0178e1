"""Batches without end: which samples a step sees follows from seed, epoch, step and rank of the world alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.distributed import dataloader
from workload import dice
from workload.samples import Batch, Samples, TrainingSamples
from workload.schema import ConfigError

if TYPE_CHECKING:
    import torch

    from workload.schema import Config

SHUFFLED = 7


def _keep(batch: Batch) -> Batch:
    return batch


def _leave_signals_to_the_rank(_worker: int) -> None:
    # TERM and USR1 are sent to all processes of a rank's group. The rank saves first and ends its workers itself; a
    # worker that dies before would end the rank with an error. To ignore TERM would not do: torch ends workers by it.
    os.setpgid(0, 0)


class Batches:
    """One rank's batches; batch number n is the same whether n batches were drawn before it or none."""

    def __init__(self, config: Config, samples: Samples, world_size: int, device: torch.device) -> None:
        training, settings, count = config.training, config.dataloader, config.dataset.num_samples
        needed = training.batch_size * world_size
        if count < needed:
            raise ConfigError(
                f"dataset.num_samples: {count} samples make no batch of {training.batch_size} on each of {world_size} "
                f"ranks; at least {needed} are needed"
            )
        words: dict[str, Any] = {"num_workers": settings.num_workers, "collate_fn": _keep}
        words["pin_memory"] = device.type == "cuda" if settings.pin_memory is None else settings.pin_memory
        if settings.num_workers:
            words["prefetch_factor"] = settings.prefetch_factor
            words["persistent_workers"] = settings.persistent_workers
            words["worker_init_fn"] = _leave_signals_to_the_rank
        seed = dice.mix_seed(training.seed, SHUFFLED) if training.shuffle_targets else None
        chosen = TrainingSamples(samples, count, seed)
        self.loader = dataloader(chosen, training.batch_size, shuffle=True, seed=training.seed, drop_last=True, **words)
        self.per_epoch = count // world_size // training.batch_size

    def draw_from(self, number: int) -> Iterator[Batch]:
        """Give batch number, counted from 0, and all that come after it."""
        epoch, start = divmod(number, self.per_epoch)
        while True:
            self.loader.set_epoch(epoch)
            self.loader.set_start(start)
            yield from self.loader
            epoch, start = epoch + 1, 0
