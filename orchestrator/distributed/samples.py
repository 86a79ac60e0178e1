"""Each rank its share of a data set: an order for each epoch, and a start in the middle of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from orchestrator.distributed import group
from orchestrator.distributed.errors import DistributedError

PIECE = 2**16
"""So many numbers are made Python's own at a time."""
_SEEDS = 2**62 + 1
"""Torch's generators take 64 bits with a sign, and the epoch is added to the seed."""


class RankSampler(DistributedSampler):  # type: ignore[type-arg] # torch 2.4's cannot be subscripted at run time
    """This rank's samples in an order that depends on the seed, the epoch, the rank and the world size alone.

    Without drop_last every rank gets the same number: the first samples come twice where they do not divide.
    """

    _start = 0

    def set_start(self, samples: int) -> None:
        """Begin the next pass behind this rank's first samples; passes after it begin at the first again."""
        if not 0 <= samples <= self.num_samples:
            raise DistributedError(f"a start at {samples} lies outside of this rank's {self.num_samples} samples")
        self._start = samples

    def __iter__(self) -> Iterator[int]:
        start, self._start = self._start, 0
        count = len(self.dataset)  # type: ignore[arg-type] # it has one: sampler() looked
        if self.shuffle:
            order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        else:
            order = torch.arange(count)
        # As torch's own does it; but a list of all numbers takes five times the memory, on each rank of a node.
        if self.total_size > count:
            order = order.repeat(-(-self.total_size // count))
        mine = order[self.rank : self.total_size : self.num_replicas][start:].clone()
        return (int(index) for begin in range(0, len(mine), PIECE) for index in mine[begin : begin + PIECE].tolist())

    def __len__(self) -> int:
        return self.num_samples - self._start


class RankLoader(DataLoader):  # type: ignore[type-arg] # as above
    """A loader of this rank's share."""

    sampler: RankSampler

    def set_epoch(self, epoch: int) -> None:
        """Give the next pass the order of an epoch, and its workers the dice of it."""
        self.sampler.set_epoch(epoch)
        if self.generator is not None:
            self.generator.manual_seed(_roll_seed(self.sampler.seed, epoch, self.sampler.rank))

    def set_start(self, batches: int) -> None:
        """Begin the next pass behind this rank's first batches; all of an epoch's batches leave an empty pass."""
        size, samples = int(self.batch_size or 1), self.sampler.num_samples
        whole = samples // size if self.drop_last else -(-samples // size)
        if not 0 <= batches <= whole:
            raise DistributedError(f"a start at batch {batches} lies outside of this rank's {whole} batches")
        # The last batch may be a part.
        self.sampler.set_start(min(batches * size, samples))


def sampler(dataset: Any, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> RankSampler:
    """Build the sampler of this rank's share.

    Raises:
        DistributedError: the data set has no length, or is empty.
    """
    info = group.current().info
    _check(dataset)
    if not 0 <= seed < _SEEDS:
        raise DistributedError(f"seed {seed} is none: give a whole number from 0 to 2**62")
    return RankSampler(
        dataset, num_replicas=info.world_size, rank=info.rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )


def _roll_seed(seed: int, epoch: int, rank: int) -> int:
    # With one seed on all ranks, each would roll the same dice for its own samples.
    return ((seed * 1_000_003 + epoch) * 1_000_003 + rank) % _SEEDS


def dataloader(
    dataset: Any,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    num_workers: int = 0,
    **words: Any,
) -> RankLoader:
    """Build a loader of this rank's share.

    Args:
        dataset: A data set with a length; one that only streams shares itself, by the rank of node_info().
        batch_size: Samples a step on this rank.
        shuffle: Another order each epoch: call set_epoch before each.
        seed: Begins the order, the same on every rank.
        drop_last: Leave out what fills no whole batch, and what does not divide by the ranks.
        num_workers: Processes that prepare batches.
        **words: Go to torch's DataLoader.

    Raises:
        DistributedError: the data set has no length, or is empty.
    """
    given = {"sampler", "batch_sampler"} & set(words)
    if given:
        raise DistributedError(f"{given.pop()} cannot be given: the loader brings the sampler of this rank's share")
    shares = sampler(dataset, shuffle=shuffle, seed=seed, drop_last=drop_last)
    words.setdefault("generator", torch.Generator().manual_seed(_roll_seed(seed, 0, shares.rank)))
    return RankLoader(
        dataset, batch_size=batch_size, sampler=shares, drop_last=drop_last, num_workers=num_workers, **words
    )


def _check(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DistributedError(
            f"{type(dataset).__name__} has no length or no numbered samples, so it cannot be divided: let it take every "
            "world_size-th sample itself, from this rank's on"
        )
    if not len(dataset):
        raise DistributedError(f"{type(dataset).__name__} is empty")
