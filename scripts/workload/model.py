"""A small transformer that predicts the next token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from workload.data import UNPREDICTABLE


class Block(nn.Module):
    """Attention to what came before, then a layer for each place."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.before_attention = nn.LayerNorm(d_model)
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.attended = nn.Linear(d_model, d_model)
        self.before_inner = nn.LayerNorm(d_model)
        self.inner = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Add what the block finds to its input."""
        batch, length, width = x.shape
        heads = self.query_key_value(self.before_attention(x)).view(batch, length, 3, self.n_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(found.transpose(1, 2).reshape(batch, length, width))
        added: Tensor = self.inner(self.before_inner(x))
        return x + added


class Transformer(nn.Module):
    """Tokens in, a score for each next token out."""

    def __init__(self, vocab_size: int, sequence_length: int, d_model: int, n_layers: int, n_heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.place = nn.Embedding(sequence_length, d_model)
        self.blocks = nn.Sequential(*[Block(d_model, n_heads) for _ in range(n_layers)])
        self.last = nn.LayerNorm(d_model)
        self.score = nn.Linear(d_model, vocab_size, bias=False)
        for part in self.modules():
            if isinstance(part, (nn.Linear, nn.Embedding)):
                nn.init.normal_(part.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every next token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        scores: Tensor = self.score(self.last(self.blocks(self.token(tokens) + self.place(places))))
        return scores


def next_token_loss(scores: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Compare the scores with what came, where a rule exists."""
    scored, wanted = scores[:, UNPREDICTABLE:], targets[:, UNPREDICTABLE:]
    loss: Tensor = functional.cross_entropy(scored.flatten(0, 1).float(), wanted.flatten(), reduction=reduction)
    return loss
