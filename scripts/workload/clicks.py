"""Synthetic clicks for the ranking transformer: whether a user clicks follows from hidden tastes, with chance left.

A sample has dense features (vectors of numbers) and a history of events, each with sparse features (numbers of
categories). A hidden taste gives every category and every dense number a weight; their sum is the chance of a click,
and for half of the users, told by the first dense number, the history counts a lot, for the others hardly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from workload import dice
from workload.samples import Batch

if TYPE_CHECKING:
    from workload.schema import Dataset

DENSE, SPARSE, CLICK, TASTE_DENSE, TASTE_SPARSE = 1, 2, 3, 4, 5
STRENGTH = 3.0
"""How far the score's spread is from 0: the larger, the less is left to chance."""
SAMPLED = 4096


class Clicks:
    """One seed's tastes, and the clicks that follow from them."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        one, seed = torch.zeros(1, dtype=torch.int64), dataset.seed
        width = dataset.num_dense_features * dataset.dense_dim
        self._dense_taste = dice.draw_normal(dice.mix_seed(seed, TASTE_DENSE), one, width)[0] / width**0.5
        categories = torch.arange(dataset.sparse_features)
        tastes = dice.draw_normal(dice.mix_seed(seed, TASTE_SPARSE), categories, dataset.vocab_size)
        # Around 0, so that half of all samples are clicks: to guess by how frequent they are gains nothing.
        self._sparse_taste = tastes - tastes.mean(dim=1, keepdim=True)

    def build(self, index: Tensor, *, held_out: bool) -> Batch:
        """Build samples: dense (n, features, dim), sparse (n, events, features); the targets are 1 for a click."""
        dense, sparse, chance = self._draw(index, held_out=held_out)
        clicked = dice.draw_fractions(dice.mix_seed(self._dataset.seed, CLICK, held_out), index, 1)[:, 0] < chance
        return Batch((dense.float(), sparse), clicked.float())

    def _draw(self, index: Tensor, *, held_out: bool) -> tuple[Tensor, Tensor, Tensor]:
        shape, seed = self._dataset, self._dataset.seed
        width, events = shape.num_dense_features * shape.dense_dim, shape.sequence_length * shape.sparse_features
        dense = dice.draw_normal(dice.mix_seed(seed, DENSE, held_out), index, width)
        sparse = dice.draw_integers(dice.mix_seed(seed, SPARSE, held_out), index, events, shape.vocab_size)
        sparse = sparse.view(len(index), shape.sequence_length, shape.sparse_features)
        liked = self._sparse_taste[torch.arange(shape.sparse_features), sparse].sum(dim=(1, 2)) / events**0.5
        score = STRENGTH * (dense @ self._dense_taste + torch.where(dense[:, 0] < 0, 0.2, 1.4) * liked)
        return dense.view(len(index), shape.num_dense_features, shape.dense_dim), sparse, score.sigmoid()

    def best_loss(self) -> float:
        """Compute the loss of one who knows all tastes, over a few thousand samples: what is left to chance."""
        _, _, chance = self._draw(torch.arange(SAMPLED), held_out=True)
        chance = chance.clamp(1e-12, 1 - 1e-12)
        return float(-(chance * chance.log() + (1 - chance) * (1 - chance).log()).mean())
