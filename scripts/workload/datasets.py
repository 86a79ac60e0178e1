"""Finds the dataset that the config names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workload.clicks import Clicks
from workload.rule import HiddenRule
from workload.text import open_text

if TYPE_CHECKING:
    from workload.samples import Samples
    from workload.schema import Dataset


def open_samples(dataset: Dataset) -> Samples:
    """Open the dataset on all ranks, a collective."""
    if dataset.name == "text":
        return open_text(dataset)
    if dataset.name == "ranking":
        return Clicks(dataset)
    return HiddenRule(dataset.seed, dataset.vocab_size, dataset.sequence_length)
