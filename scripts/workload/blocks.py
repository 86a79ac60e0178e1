"""The block that both models are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from workload.schema import Model

MLP_RATIO = 4
FIRST_SPREAD = 0.02


class Block(nn.Module):
    """Attention, to what came before or to everything, then a layer for each place."""

    def __init__(self, settings: Model, *, is_causal: bool) -> None:
        super().__init__()
        width = settings.model_dim
        hidden = settings.mlp_hidden_dim or MLP_RATIO * width
        self.num_heads = settings.num_heads
        self.is_causal = is_causal
        self.dropout = settings.dropout
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.before_inner = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """Add what the block finds to its input."""
        batch, length, width = x.shape
        heads = self.query_key_value(self.before_attention(x)).view(batch, length, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        x = x + self._drop(self.attended(found.transpose(1, 2).reshape(batch, length, width)))
        return x + self._drop(self.inner(self.before_inner(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training) if self.dropout else x


class Blocks(nn.ModuleList):
    """Blocks one after the other; told to, they are computed again in the backward pass instead of kept."""

    def __init__(self, settings: Model, *, is_causal: bool) -> None:
        super().__init__([Block(settings, is_causal=is_causal) for _ in range(settings.num_layers)])
        self.recompute = False

    def forward(self, x: Tensor) -> Tensor:
        """Send the input through all blocks."""
        for block in self:
            again = self.recompute and torch.is_grad_enabled()
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return x


def start_weights(model: nn.Module) -> None:
    """Draw the first weights, small and around 0."""
    for part in model.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=FIRST_SPREAD)
