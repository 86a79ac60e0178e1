from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from verify import Answer, find_faults, render_table  # noqa: E402 - found by the line above
from workload import bpe, dice  # noqa: E402
from workload.clicks import Clicks  # noqa: E402
from workload.machine import find_checkpoint_dir  # noqa: E402
from workload.models import RankingTransformer, Transformer  # noqa: E402
from workload.rule import HELD_OUT_SHARE, NOISE, SHUFFLES, UNPREDICTABLE, HiddenRule  # noqa: E402
from workload.samples import NOT_SCORED, TrainingSamples  # noqa: E402
from workload.schedule import learning_rate  # noqa: E402
from workload.schema import ConfigError, Dataset, Model, Scheduler  # noqa: E402
from workload.text import Text, open_text  # noqa: E402
from workload.text_source import read_text  # noqa: E402

from orchestrator.distributed import distributed  # noqa: E402

FIRST = torch.arange(500)


@pytest.mark.parametrize("vocab_size", [8, 29, 32])
def test_no_held_out_sequence_can_turn_up_in_training(vocab_size: int) -> None:
    rule = HiddenRule(3, vocab_size, 12)
    (held_out,) = rule.build(FIRST, held_out=True).inputs
    (trained,) = rule.build(FIRST, held_out=False).inputs
    assert set(((held_out[:, 0] + held_out[:, 1]) % HELD_OUT_SHARE).tolist()) == {0}
    assert 0 not in ((trained[:, 0] + trained[:, 1]) % HELD_OUT_SHARE).tolist()
    for batch in (held_out, trained):
        assert 0 <= int(batch.min()) <= int(batch.max()) < vocab_size


def test_one_who_knows_the_rule_reaches_the_best_loss_and_no_token_is_more_frequent() -> None:
    rule = HiddenRule(7, 32, 32)
    assert rule.tables.sort(dim=1).values.tolist() == [list(range(32))] * SHUFFLES
    batch = rule.build(torch.arange(4000), held_out=False)
    (inputs,), targets = batch.inputs, batch.targets[:, UNPREDICTABLE:]
    assert set(batch.targets[:, :UNPREDICTABLE].flatten().tolist()) == {NOT_SCORED}
    ruled = rule.tables[inputs[:, 1:] % SHUFFLES, inputs[:, :-1]]
    hits = (targets == ruled).double().mean().item()
    right, stray = 1 - NOISE + NOISE / 32, NOISE / 32
    assert -hits * math.log(right) - (1 - hits) * math.log(stray) == pytest.approx(rule.best_loss(), rel=0.05)
    share = torch.bincount(targets.flatten(), minlength=32) / targets.numel()
    entropy = -(share * share.log()).sum().item()
    assert entropy == pytest.approx(math.log(32), rel=0.002)


def test_a_sample_depends_on_seed_and_number_alone() -> None:
    clicks = Clicks(Dataset(name="ranking", vocab_size=20, sequence_length=4))
    text = Text(torch.arange(5000), 1, 8)
    for samples in (HiddenRule(1, 16, 8), clicks, text):
        whole = samples.build(torch.arange(64), held_out=False)
        part = samples.build(torch.tensor([40, 7]), held_out=False)
        assert torch.equal(part.targets, whole.targets[[40, 7]])
        assert all(torch.equal(a, b[[40, 7]]) for a, b in zip(part.inputs, whole.inputs, strict=True))
        held_out = samples.build(torch.arange(64), held_out=True)
        assert not torch.equal(held_out.inputs[0], whole.inputs[0])
    assert not torch.equal(
        HiddenRule(1, 16, 8).build(FIRST, held_out=False).targets,
        HiddenRule(2, 16, 8).build(FIRST, held_out=False).targets,
    )


def test_shuffled_targets_are_those_of_other_samples() -> None:
    rule = HiddenRule(1, 16, 8)
    true, shuffled = TrainingSamples(rule, 5000, None), TrainingSamples(rule, 5000, 9)
    numbers = list(range(64))
    a, b = true.__getitems__(numbers), shuffled.__getitems__(numbers)
    assert torch.equal(a.inputs[0], b.inputs[0])
    assert (a.targets[:, 1:] == b.targets[:, 1:]).double().mean() < 0.2
    assert torch.equal(shuffled[5].targets[0], b.targets[5])


def test_dice_are_even_and_independent_of_their_neighbours() -> None:
    drawn = dice.draw_fractions(3, torch.arange(2000), 50)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.01)
    for a, b in (
        (drawn[:-1], drawn[1:]),
        (drawn[:, :-1], drawn[:, 1:]),
        (drawn, dice.draw_fractions(4, torch.arange(2000), 50)),
    ):
        both = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))
        assert abs(both[0, 1].item()) < 0.02
    normal = dice.draw_normal(3, torch.arange(2000), 50)
    assert (normal.mean().item(), normal.std().item()) == pytest.approx((0, 1), abs=0.02)
    assert set(dice.draw_integers(1, torch.arange(100), 10, 7).flatten().tolist()) == set(range(7))
    assert len({dice.mix_seed(a, b) for a in range(30) for b in range(30)}) == 900


def test_clicks_follow_from_the_features_with_chance_left() -> None:
    clicks = Clicks(Dataset(name="ranking", vocab_size=50, sequence_length=6))
    batch = clicks.build(torch.arange(4000), held_out=False)
    dense, sparse = batch.inputs
    assert (dense.shape, sparse.shape, batch.targets.shape) == ((4000, 4, 4), (4000, 6, 3), (4000,))
    assert 0.4 < batch.targets.mean().item() < 0.6
    assert 0.2 < clicks.best_loss() < 0.6 < math.log(2)


TEXT = "def naïve(x):\n    return x  # die Größe des Wortes, des Wortes\n\n" * 20 + "日本語 \t\r\n 12345 __init__"


def test_any_text_comes_back_from_its_tokens_and_takes_fewer() -> None:
    pairs = bpe.learn_pairs(TEXT, 300)
    assert 20 < len(pairs) <= 44
    assert bpe.learn_pairs(TEXT, 300) == pairs
    tokenizer = bpe.Tokenizer(pairs)
    tokens = tokenizer.encode(TEXT)
    assert tokenizer.decode(tokens) == TEXT
    assert len(tokens) < len(TEXT.encode()) / 2
    assert max(tokens) < 300
    for other in ("", "ß", "never seen Ünicode \U0001f600\n\n\n  x"):
        assert tokenizer.decode(tokenizer.encode(other)) == other
    assert bpe.learn_pairs("a b c", 1000) == []


def test_the_last_tenth_of_a_text_is_never_trained_on() -> None:
    text = Text(torch.arange(1000), 1, 20)
    trained, held_out = (text.build(torch.arange(3000), held_out=held_out) for held_out in (False, True))
    assert int(trained.targets.max()) < 900 <= int(held_out.inputs[0].min())
    assert (trained.inputs[0] + 1).equal(trained.targets)
    with pytest.raises(ConfigError, match=r"allow at most 99, not 100"):
        Text(torch.arange(1000), 1, 100)


def test_the_gpt_sees_nothing_of_what_comes_and_the_ranking_sees_all() -> None:
    torch.manual_seed(0)
    settings = Model(model_dim=32, num_heads=4)
    model = Transformer(settings, Dataset(vocab_size=16, sequence_length=8))
    tokens = torch.randint(16, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 16
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])

    dataset = Dataset(name="ranking", vocab_size=16, sequence_length=4)
    ranking = RankingTransformer(settings, dataset)
    dense, sparse = Clicks(dataset).build(torch.arange(3), held_out=False).inputs
    score = ranking(dense, sparse)
    assert score.shape == (3,)
    for place in range(4):
        other = sparse.clone()
        other[:, place, 1] = (other[:, place, 1] + 1) % 16
        assert not torch.allclose(ranking(dense, other), score, atol=1e-7)
    assert not torch.allclose(ranking(dense + 1, sparse), score, atol=1e-7)


def test_the_learning_rate_rises_and_falls_as_told() -> None:
    def rates(**words: object) -> list[float]:
        settings = Scheduler(**{"warmup_steps": 4, "min_lr_ratio": 0.1, **words})  # type: ignore[arg-type]
        return [learning_rate(step, 1.0, settings, 12) for step in range(1, 13)]

    linear = rates()
    assert linear[:4] == [0.25, 0.5, 0.75, 1.0]
    assert linear[7] == pytest.approx(0.55)
    assert linear[11] == pytest.approx(0.1)
    cosine = rates(name="cosine")
    assert cosine[5] > linear[5]
    assert (cosine[7], cosine[11]) == pytest.approx((0.55, 0.1))
    assert rates(name="constant")[3:] == [1.0] * 9
    assert rates(total_steps=8)[7:] == pytest.approx([0.1] * 5)
    assert rates(warmup_steps=0)[11] == pytest.approx(0.1)
    assert rates(warmup_steps=100)[11] == pytest.approx(1.0)


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


@pytest.mark.parametrize("given", ["~nosuchuser/x", "a\0b", "LOOP/x", "\ud800", "..", ".", "../code/x"])
def test_an_odd_checkpoint_dir_is_told(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match="checkpoint"):
        find_checkpoint_dir(given.replace("LOOP", str(tmp_path / "loop")), None)


def test_a_cache_of_tokens_that_was_cut_off_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "text.txt").write_text("so it goes, and so it went. " * 400)
    settings = Dataset(name="text", path=str(tmp_path / "text.txt"), vocab_size=256, sequence_length=8)
    with distributed(single_process=True):
        whole = open_text(settings).build(torch.arange(4), held_out=False).targets
        (cache,) = tmp_path.rglob("*.tokens")
        for size in (0, 1, 1001, cache.stat().st_size - 4):
            os.truncate(cache, size)
            assert torch.equal(open_text(settings).build(torch.arange(4), held_out=False).targets, whole)


@pytest.mark.parametrize(("path", "words"), [("~nosuchuser/x", "home"), ("a\0b", "null"), ("FIFO", "no plain file")])
def test_a_text_that_is_no_file_is_told(path: str, words: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match=f"dataset.path: .*{words}"):
        read_text(path.replace("FIFO", str(tmp_path / "fifo")))


def test_a_text_of_a_few_tokens_is_told_to_be_too_short() -> None:
    with pytest.raises(ConfigError, match="13 tokens, too few"):
        Text(torch.zeros(13, dtype=torch.int32), 1, 4)
