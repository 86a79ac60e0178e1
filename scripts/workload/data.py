"""Sequences that obey a hidden rule, with noise: there is something to learn, and a known best that can be reached.

A token follows from the two before it: the younger one picks a shuffle of the alphabet, the older one is looked up in
it. With the noise's chance a token is drawn at random instead. A model must look back two places to find the rule, and
no model can do better than the noise allows. Each token is as frequent as any other, so that guessing by frequency
gains nothing: a model that has not found the rule stays at the logarithm of the alphabet's size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SHUFFLES = 4
NOISE = 0.05
UNPREDICTABLE = 1
"""The first target follows from one token alone: no rule covers it, and it is not scored."""
HELD_OUT_SHARE = 8
"""One in so many opening pairs is kept for the held-out set: no sequence of it can turn up in training."""


class HiddenRule:
    """One seed's rule, and the sequences that follow it."""

    def __init__(self, seed: int, vocab_size: int, sequence_length: int) -> None:
        self._seed = seed
        self._vocab_size = vocab_size
        self._length = sequence_length
        self._tables = torch.stack([torch.randperm(vocab_size, generator=self._dice(0, k)) for k in range(SHUFFLES)])

    def _dice(self, *place: int) -> torch.Generator:
        # Each batch has dice of its own, so that it is the same whatever was drawn before and by whom.
        number = self._seed
        for part in place:
            number = (number * 1_000_003 + part + 1) % (1 << 61)
        return torch.Generator().manual_seed(number)

    def build_training_batch(self, step: int, rank: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Build the inputs and targets of one step on one rank."""
        return self._build(batch_size, self._dice(1, step, rank), held_out=False)

    def build_held_out(self, count: int) -> tuple[Tensor, Tensor]:
        """Build the inputs and targets that training never shows."""
        return self._build(count, self._dice(2), held_out=True)

    def _build(self, count: int, dice: torch.Generator, *, held_out: bool) -> tuple[Tensor, Tensor]:
        size = self._vocab_size
        first = torch.randint(size, (count,), generator=dice)
        second = torch.randint(size, (count,), generator=dice)
        # The sum of the opening pair decides the set: training steps off the kept sums, held-out steps onto them.
        over = (first + second) % HELD_OUT_SHARE
        away = torch.randint(1, HELD_OUT_SHARE, (count,), generator=dice)
        second = second - over if held_out else torch.where(over == 0, second + away, second)
        # A step out of the alphabet comes back by whole shares, which leaves the sum's remainder as it is.
        second = torch.where(second < 0, second + HELD_OUT_SHARE, second)
        second = torch.where(second >= size, second - HELD_OUT_SHARE, second)
        tokens = [first, second]
        for _ in range(self._length - 1):
            ruled = self._tables[tokens[-1] % SHUFFLES, tokens[-2]]
            drawn = torch.randint(size, (count,), generator=dice)
            noisy = torch.rand(count, generator=dice) < NOISE
            tokens.append(torch.where(noisy, drawn, ruled))
        whole = torch.stack(tokens, dim=1)
        return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()

    def shuffle_targets(self, targets: Tensor, step: int, rank: int) -> Tensor:
        """Give every target away to a place where it means nothing."""
        order = torch.randperm(targets.numel(), generator=self._dice(3, step, rank))
        return targets.flatten()[order].reshape(targets.shape)

    def best_loss(self) -> float:
        """Compute the loss of one who knows the rule: the noise alone."""
        stray = NOISE / self._vocab_size
        right = 1 - NOISE + stray
        return -right * math.log(right) - (self._vocab_size - 1) * stray * math.log(stray)
