"""The two models, and what is lost when they are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from workload.blocks import Blocks, start_weights
from workload.samples import NOT_SCORED

if TYPE_CHECKING:
    from workload.schema import Dataset, Model


class Transformer(nn.Module):
    """Tokens (batch, length) in, a score for each next token (batch, length, vocabulary) out."""

    def __init__(self, settings: Model, dataset: Dataset) -> None:
        super().__init__()
        width = settings.model_dim
        self.token = nn.Embedding(dataset.vocab_size, width)
        self.place = nn.Embedding(dataset.sequence_length, width)
        self.blocks = Blocks(settings, is_causal=True)
        self.last = nn.LayerNorm(width)
        self.score = nn.Linear(width, dataset.vocab_size, bias=False)
        start_weights(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every next token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        scores: Tensor = self.score(self.last(self.blocks(self.token(tokens) + self.place(places))))
        return scores

    @staticmethod
    def compute_loss(scores: Tensor, targets: Tensor, reduction: str = "mean") -> tuple[Tensor, Tensor]:
        """Give the loss of what is scored, and of how many tokens it is."""
        flat = targets.flatten()
        loss = functional.cross_entropy(
            scores.flatten(0, 1).float(), flat, ignore_index=NOT_SCORED, reduction=reduction
        )
        return loss, (flat != NOT_SCORED).sum()


class RankingTransformer(nn.Module):
    """Dense (batch, features, dim) and sparse features (batch, events, features) in, one score (batch) out."""

    def __init__(self, settings: Model, dataset: Dataset) -> None:
        super().__init__()
        width = settings.model_dim
        self.vocab_size = dataset.vocab_size
        # One table for all sparse features, each with rows of its own.
        self.embedding = nn.Embedding(dataset.sparse_features * dataset.vocab_size, settings.embedding_dim)
        self.event = nn.Linear(dataset.sparse_features * settings.embedding_dim, width)
        self.dense = nn.Linear(dataset.dense_dim, width)
        self.place = nn.Embedding(1 + dataset.num_dense_features + dataset.sequence_length, width)
        self.blocks = Blocks(settings, is_causal=False)
        self.last = nn.LayerNorm(width)
        self.score = nn.Linear(width, 1)
        start_weights(self)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """Score every sample; the higher, the likelier a click."""
        rows = sparse + torch.arange(sparse.shape[-1], device=sparse.device) * self.vocab_size
        features = self.dense(dense)
        events = self.event(self.embedding(rows).flatten(2).to(features.dtype))
        places = self.place(torch.arange(self.place.num_embeddings, device=sparse.device))
        # The first place holds no feature: what is found out is gathered there, and scored.
        gathered = features.new_zeros(len(sparse), 1, features.shape[-1])
        found = self.blocks(torch.cat([gathered, features, events.to(features.dtype)], dim=1) + places)
        score: Tensor = self.score(self.last(found[:, 0]))
        return score.squeeze(-1)

    @staticmethod
    def compute_loss(scores: Tensor, targets: Tensor, reduction: str = "mean") -> tuple[Tensor, Tensor]:
        """Give the binary loss, and of how many samples it is."""
        loss = functional.binary_cross_entropy_with_logits(scores.float(), targets, reduction=reduction)
        return loss, torch.tensor(targets.numel(), device=targets.device)


MODELS: dict[str, type[Transformer | RankingTransformer]] = {"gpt": Transformer, "ranking": RankingTransformer}


def build_model(settings: Model, dataset: Dataset, seed: int) -> Transformer | RankingTransformer:
    """Build the model with the seed's first weights, on the CPU: the same on every rank and every kind of device."""
    torch.manual_seed(seed)
    return MODELS[settings.name](settings, dataset)
