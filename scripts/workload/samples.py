"""What all datasets have in common: samples by number, and held-out ones that training never shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from workload import dice

NOT_SCORED = -100
"""A target that is not scored; torch's cross entropy knows it by this number."""


class Batch(NamedTuple):
    """What goes into the model, each with the samples in its first dimension, and what should come out."""

    inputs: tuple[Tensor, ...]
    targets: Tensor


class Samples(Protocol):
    """Builds samples by number; the same number is the same sample on every rank."""

    def build(self, index: Tensor, *, held_out: bool) -> Batch:
        """Build the samples of these numbers."""
        ...

    def best_loss(self) -> float | None:
        """Tell the loss that the data's own noise allows, where it is known."""
        ...


class TrainingSamples:
    """The training side as torch's loader wants it: a list of batches' worth of samples at once."""

    def __init__(self, samples: Samples, count: int, shuffle_seed: int | None) -> None:
        self._samples = samples
        self._count = count
        self._shuffle_seed = shuffle_seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Batch:
        """Build one sample."""
        return self.__getitems__([number])

    def __getitems__(self, numbers: Sequence[int]) -> Batch:
        """Build one batch; the loader asks for it as a whole."""
        index = torch.tensor(numbers, dtype=torch.int64)
        batch = self._samples.build(index, held_out=False)
        if self._shuffle_seed is None:
            return batch
        # The control: each sample gets another's targets, always the same one's, as wrong data would have it.
        other = dice.draw_integers(self._shuffle_seed, index, 1, self._count)[:, 0]
        return batch._replace(targets=self._samples.build(other, held_out=False).targets)
