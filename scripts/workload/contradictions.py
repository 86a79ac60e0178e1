"""Keys of the training config that do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workload.schema import Config

BYTES = 256


def find_contradiction(config: Config) -> tuple[str, str] | None:
    """Find the first key that others exclude, and why; None when all go together."""
    model, dataset = config.model, config.dataset
    wanted = "ranking" if dataset.name == "ranking" else "gpt"
    if model.name != wanted:
        return "model.name", f"must be {wanted} for dataset.name: {dataset.name}, not {model.name}"
    if model.model_dim % model.num_heads:
        return "model.model_dim", f"({model.model_dim}) must be a multiple of num_heads ({model.num_heads})"
    if dataset.name == "text" and dataset.vocab_size < BYTES:
        return (
            "dataset.vocab_size",
            f"must be at least {BYTES} for a text, whose tokens begin with the bytes, not {dataset.vocab_size}",
        )
    if config.compile.enabled and config.compile.mode != "default" and config.compile.backend != "inductor":
        return "compile.mode", f"is inductor's; compile.backend is {config.compile.backend}"
    if config.checkpoint.dir == "":
        return "checkpoint.dir", "must be a folder or null, not an empty text"
    return None
