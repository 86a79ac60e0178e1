from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

import orchestrator.distributed as lib  # noqa: E402 - needs torch
from orchestrator.distributed.samples import RankSampler, _roll_seed  # noqa: E402


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A world of one."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("orchestrator.distributed.exits._watched", True)
    lib.setup(single_process=True)
    yield
    lib.cleanup()


class Dice:
    """Samples that a worker rolls, as augmentations are."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, float(torch.rand(())), random.random()


def test_a_start_in_the_middle_is_the_end_of_the_whole() -> None:
    lib.setup(single_process=True)
    shares = lib.sampler(range(10), seed=4)
    whole = list(shares)
    shares.set_start(3)
    assert len(shares) == 7
    assert list(shares) == whole[3:]
    assert list(shares) == whole
    with pytest.raises(lib.DistributedError, match="outside of this rank's 10 samples"):
        shares.set_start(11)


@pytest.mark.parametrize(("drop_last", "batches"), [(False, [2, 2, 1]), (True, [2, 2])])
def test_an_epoch_can_begin_at_each_of_its_batches_and_at_its_end(*, drop_last: bool, batches: list[int]) -> None:
    loader = lib.dataloader(range(5), 2, drop_last=drop_last)
    whole = [batch.tolist() for batch in loader]
    assert [len(batch) for batch in whole] == batches
    for start in range(len(whole) + 1):
        loader.set_start(start)
        assert len(loader) == len(whole) - start
        assert [batch.tolist() for batch in loader] == whole[start:]
    for wrong in (-1, len(whole) + 1):
        with pytest.raises(lib.DistributedError, match=f"a start at batch {wrong} lies outside"):
            loader.set_start(wrong)


def test_an_epoch_has_its_own_order_and_dice_and_gives_them_again() -> None:
    loader = lib.dataloader(Dice(), 3, seed=5, num_workers=1)

    def draw(epoch: int) -> list[list[float]]:
        loader.set_epoch(epoch)
        return [column.tolist() for batch in loader for column in batch]

    first, second = draw(1), draw(2)
    assert first != second
    assert draw(1) == first
    dice = {_roll_seed(seed, epoch, rank) for seed in (0, 1) for epoch in (0, 1) for rank in (0, 1)}
    assert len(dice) == 8, "ranks that roll the same dice see fewer samples than they think"


def test_large_seeds_will_do_and_wrong_ones_are_told() -> None:
    loader = lib.dataloader(range(4), 1, seed=1_795_887_042_000_000_000)
    loader.set_epoch(3)
    assert sorted(int(one) for one in loader) == [0, 1, 2, 3]
    for wrong in (-1, 2**63):
        with pytest.raises(lib.DistributedError, match="give a whole number from 0"):
            lib.sampler(range(4), seed=wrong)


def test_what_cannot_be_divided_is_refused() -> None:
    for wrong in ({1, 2}, iter([1])):
        with pytest.raises(lib.DistributedError, match="cannot be divided"):
            lib.sampler(wrong)


def test_ranks_share_all_samples_without_drop_last_and_equal_numbers_with_it() -> None:
    samples: Any = range(10)
    for world in (1, 2, 3, 4):
        shares = [RankSampler(samples, num_replicas=world, rank=rank, seed=2) for rank in range(world)]
        assert {index for share in shares for index in share} == set(range(10))
        cut = [RankSampler(samples, num_replicas=world, rank=rank, drop_last=True) for rank in range(world)]
        kept = [index for share in cut for index in share]
        assert len(kept) == len(set(kept)) == 10 - 10 % world
