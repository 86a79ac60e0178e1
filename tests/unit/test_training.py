from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from verify import Answer, find_faults, render_table  # noqa: E402 - found by the line above
from workload.data import HELD_OUT_SHARE, NOISE, SHUFFLES, HiddenRule  # noqa: E402
from workload.model import Transformer  # noqa: E402


@pytest.mark.parametrize("vocab_size", [8, 29, 32])
def test_no_held_out_sequence_can_turn_up_in_training(vocab_size: int) -> None:
    rule = HiddenRule(3, vocab_size, 12)
    held_out, _ = rule.build_held_out(500)
    trained, _ = rule.build_training_batch(1, 0, 500)
    assert set(((held_out[:, 0] + held_out[:, 1]) % HELD_OUT_SHARE).tolist()) == {0}
    assert 0 not in ((trained[:, 0] + trained[:, 1]) % HELD_OUT_SHARE).tolist()
    for batch in (held_out, trained):
        assert 0 <= int(batch.min()) <= int(batch.max()) < vocab_size


def test_one_who_knows_the_rule_reaches_the_best_loss_and_no_token_is_more_frequent() -> None:
    rule = HiddenRule(7, 32, 32)
    inputs, targets = rule.build_training_batch(1, 0, 4000)
    ruled = rule._tables[inputs[:, 1:] % SHUFFLES, inputs[:, :-1]]
    hits = (targets[:, 1:] == ruled).double().mean().item()
    right, stray = 1 - NOISE + NOISE / 32, NOISE / 32
    assert -hits * math.log(right) - (1 - hits) * math.log(stray) == pytest.approx(rule.best_loss(), rel=0.05)
    share = torch.bincount(targets.flatten(), minlength=32) / targets.numel()
    entropy = -(share * share.log()).sum().item()
    assert entropy == pytest.approx(math.log(32), rel=0.002)


def test_a_batch_depends_on_seed_step_and_rank_alone() -> None:
    one, other = HiddenRule(1, 16, 8), HiddenRule(1, 16, 8)
    one.build_training_batch(1, 0, 4)
    batch = one.build_training_batch(2, 1, 4)[0]
    assert torch.equal(batch, other.build_training_batch(2, 1, 4)[0])
    for step, rank in ((2, 0), (3, 1)):
        assert not torch.equal(batch, other.build_training_batch(step, rank, 4)[0])
    assert not torch.equal(batch, HiddenRule(2, 16, 8).build_training_batch(2, 1, 4)[0])


def test_shuffled_targets_are_the_same_tokens_elsewhere() -> None:
    rule = HiddenRule(1, 16, 8)
    _, targets = rule.build_training_batch(1, 0, 64)
    shuffled = rule.shuffle_targets(targets, 1, 0)
    assert shuffled.flatten().sort().values.equal(targets.flatten().sort().values)
    assert (shuffled == targets).double().mean() < 0.2


def test_the_model_sees_nothing_of_what_comes() -> None:
    torch.manual_seed(0)
    model = Transformer(16, 8, 32, 2, 4)
    tokens = torch.randint(16, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 16
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def answers(*totals: int) -> list[Answer]:
    return [Answer(rank, rank % 2, rank // 2, f"h{rank // 2}", "", "", total) for rank, total in enumerate(totals)]


def test_verify_finds_a_wrong_sum_a_wrong_place_and_missing_ranks() -> None:
    assert find_faults(answers(6, 6, 6, 6)) == []
    (fault,) = find_faults(answers(6, 6, 5, 6))
    assert fault == "sum wrong: rank 2 on h1 got 5, 6 is right for 4 ranks"
    told = [Answer(0, 0, 1, "h0", told_node_rank="1", torchrun_node_rank="0", total=0)]
    assert "was told node rank 1, torchrun says 0" in find_faults(told)[0]
    assert "ranks wrong" in find_faults(list(reversed(answers(1, 1))))[0]


def test_verify_shows_the_places_in_rank_order() -> None:
    lines = render_table(list(reversed(answers(1, 1)))).splitlines()
    assert lines[0].split() == ["rank", "local", "rank", "node", "rank", "host", "AORTA_NODE_RANK"]
    assert [line.split()[0] for line in lines[1:]] == ["0", "1"]
