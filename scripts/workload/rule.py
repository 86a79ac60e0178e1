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

from workload import dice
from workload.samples import NOT_SCORED, Batch

SHUFFLES = 4
NOISE = 0.05
UNPREDICTABLE = 1
"""The first target follows from one token alone: no rule covers it, and it is not scored."""
HELD_OUT_SHARE = 8
"""One in so many opening pairs is kept for the held-out set: no sequence of it can turn up in training."""
OPENING, STRAY, NOISY = 1, 2, 3


class HiddenRule:
    """One seed's rule, and the sequences that follow it."""

    def __init__(self, seed: int, vocab_size: int, sequence_length: int) -> None:
        self._seed = seed
        self._vocab_size = vocab_size
        self._length = sequence_length
        shuffles = dice.draw_fractions(dice.mix_seed(seed, 0), torch.arange(SHUFFLES), vocab_size)
        self.tables = shuffles.argsort(dim=1)

    def build(self, index: Tensor, *, held_out: bool) -> Batch:
        """Build the sequences of these numbers: tokens (samples, length), and what follows each."""
        size, of_set = self._vocab_size, int(held_out)
        opening = dice.draw_integers(dice.mix_seed(self._seed, OPENING, of_set), index, 3, size * HELD_OUT_SHARE)
        first, second, away = opening[:, 0] % size, opening[:, 1] % size, opening[:, 2] % (HELD_OUT_SHARE - 1) + 1
        # The sum of the opening pair decides the set: training steps off the kept sums, held-out steps onto them.
        over = (first + second) % HELD_OUT_SHARE
        second = second - over if held_out else torch.where(over == 0, second + away, second)
        # A step out of the alphabet comes back by whole shares, which leaves the sum's remainder as it is.
        second = torch.where(second < 0, second + HELD_OUT_SHARE, second)
        second = torch.where(second >= size, second - HELD_OUT_SHARE, second)
        count = self._length - 1
        drawn = dice.draw_integers(dice.mix_seed(self._seed, STRAY, of_set), index, count, size)
        noisy = dice.draw_fractions(dice.mix_seed(self._seed, NOISY, of_set), index, count) < NOISE
        tokens = [first, second]
        for place in range(count):
            ruled = self.tables[tokens[-1] % SHUFFLES, tokens[-2]]
            tokens.append(torch.where(noisy[:, place], drawn[:, place], ruled))
        whole = torch.stack(tokens, dim=1)
        targets = whole[:, 1:].clone()
        targets[:, :UNPREDICTABLE] = NOT_SCORED
        return Batch((whole[:, :-1].contiguous(),), targets)

    def best_loss(self) -> float:
        """Compute the loss of one who knows the rule: the noise alone."""
        stray = NOISE / self._vocab_size
        right = 1 - NOISE + stray
        return -right * math.log(right) - (self._vocab_size - 1) * stray * math.log(stray)
