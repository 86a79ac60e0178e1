"""Random numbers without a state: each follows from its seed and its place alone, whoever asks and in whatever order."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST, SECOND, GOLDEN = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15, -0x61C8864680B583EB
"""The multipliers of splitmix64, as signed numbers."""
FRACTION_BITS = 53
SAFE = (1 << 62) - 1


def _shift(x: Tensor, bits: int) -> Tensor:
    # Torch's own shift of signed numbers draws the sign in.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """Scatter 64-bit numbers over all 64-bit numbers; wraps around as the processor does."""
    x = x + GOLDEN
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def mix_seed(*parts: int) -> int:
    """Make one seed of several whole numbers, from 0 to 2**62."""
    number = torch.zeros((), dtype=torch.int64)
    for part in parts:
        number = mix(number + part)
    return int(number) & SAFE


def draw_integers(seed: int, index: Tensor, places: int, limit: int) -> Tensor:
    """Draw (len(index), places) whole numbers from 0 to below limit."""
    return (_draw(seed, index, places) & SAFE) % limit


def draw_fractions(seed: int, index: Tensor, places: int) -> Tensor:
    """Draw (len(index), places) numbers from 0 to below 1, in double precision."""
    return _shift(_draw(seed, index, places), 64 - FRACTION_BITS).double() / (1 << FRACTION_BITS)


def draw_normal(seed: int, index: Tensor, places: int) -> Tensor:
    """Draw (len(index), places) numbers of the normal distribution."""
    size = draw_fractions(mix_seed(seed, 1), index, places)
    angle = draw_fractions(mix_seed(seed, 2), index, places)
    return ((1 - size).log() * -2).sqrt() * (angle * 2 * torch.pi).cos()


def _draw(seed: int, index: Tensor, places: int) -> Tensor:
    row = mix(index.to(torch.int64) + mix_seed(seed))
    return mix(row[:, None] + mix(torch.arange(places, dtype=torch.int64))[None])
