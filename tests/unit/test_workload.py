from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from workload.config import Config, ConfigError, build_config, find_idle_keys, read_config  # noqa: E402 - found by the line above
from workload.plain_yaml import PlainYamlError, parse_plain_yaml, parse_yaml  # noqa: E402

CONFIGS = sorted(path for path in (PROJECT / "config").glob("*.yaml") if not path.name.startswith("launch."))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_our_configs_read_the_same_without_pyyaml_and_give_no_idle_key(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_config(path)
    if path.name != "train.example.yaml":
        assert find_idle_keys(path, config) == []
    lines = parse_yaml(path.read_text(), skip=("launch",)).lines
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert read_config(path) == config
    assert parse_yaml(path.read_text(), skip=("launch",)).lines == lines


def test_all_seven_configs_are_there() -> None:
    names = {"two_nodes", "two_nodes_ddp", "gpt_small", "hybrid_shard", "cpu_demo", "profile", "debug"}
    assert names <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n\n",
        "a:\n  b: 1\n  c:\n    d: 1.5\n  e: true\nf: null\n",
        "a: [1, two, \"three\"]\nb: []\nc: 'it # is'  # said\nd: x#y\n",
        "---\na:\n    b: -3\n    c: .5\nd: ~\n",
        "a: False\nb: 1.0e-3\nc: http://x:80/y\n",
        "a: {b: 1, c: [0.9, 0.5], d: {e: 'x, y'}}\nf: {}\n",
        "a: [[1, 2], [3]]\nb: {c: }\n",
        "a:\nb:\n  c:\nd: 1\n",
    ],
)
def test_the_plain_reader_agrees_with_pyyaml(text: str) -> None:
    assert parse_plain_yaml(text).data == (yaml.safe_load(text) or {})
    assert parse_plain_yaml(text).lines == parse_yaml(text).lines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:\n  - 1\n", "line 2"),
        ("a: {b: 1\n", "line 1"),
        ("a: {1}\n", "line 1"),
        ("a: {b: 1, b: 2}\n", "line 1: b is given twice"),
        ("a: [1]]\n", "line 1"),
        ("a: [b: 1]\n", "line 1"),
        ("a:\n    b: 1\n  c: 2\n", "line 3"),
        ("a: 1\na: 2\n", "given twice"),
        ("  a: 1\n", "line 1"),
        ("a: |\n  text\n", "line 1"),
    ],
)
def test_the_plain_reader_refuses_what_it_does_not_know(text: str, words: str) -> None:
    with pytest.raises(PlainYamlError, match=words):
        parse_plain_yaml(text)


def test_with_pyyaml_too_a_key_is_given_once_and_broken_text_is_told_with_its_line() -> None:
    with pytest.raises(PlainYamlError, match="line 3: b is given twice"):
        parse_yaml("a:\n  b: 1\n  b: 2\n")
    with pytest.raises(PlainYamlError, match="line 3: "):
        parse_yaml("a: 1\nb: [1\n")


def test_the_launchers_section_is_not_looked_at() -> None:
    text = "launch:\n  env: {A: 1}\n  args:\n    - x\ntraining:\n  seed: 5\n"
    assert parse_plain_yaml(text, skip=("launch",)).data == {"training": {"seed": 5}}
    assert parse_yaml(text, skip=("launch",)).data == {"training": {"seed": 5}}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"training": {"max_step": 1}}, "unknown key training.max_step: did you mean training.max_steps?"),
        ({"optimiser": {}}, "unknown key optimiser: did you mean optimizer?"),
        ({"training": {"max_steps": "many"}}, "training.max_steps must be a whole number"),
        ({"training": {"max_steps": True}}, "training.max_steps must be a whole number"),
        ({"training": {"epochs": "two"}}, "training.epochs must be a whole number or null"),
        ({"training": {"shuffle_targets": "no"}}, "must be true or false"),
        ({"training": {"log_interval": 0}}, "training.log_interval must be at least 1"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr must be more than 0"),
        ({"optimizer": {"lr": "inf"}}, "optimizer.lr must be a finite number"),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr must be a finite number"),
        ({"optimizer": {"betas": [0.9]}}, "optimizer.betas must be two numbers"),
        ({"optimizer": {"betas": [0.9, 1]}}, "optimizer.betas must be two numbers"),
        ({"model": {"dropout": 1}}, "model.dropout must be less than 1"),
        ({"fsdp": {"sharding_strategy": "full-shard"}}, "did you mean full_shard?"),
        ({"profiling": {"ranks": "some"}}, "profiling.ranks must be all or ranks like [0, 3]"),
        ({"profiling": {"ranks": []}}, "profiling.ranks must be all"),
        ({"model": {"model_dim": 10, "num_heads": 4}}, "must be a multiple of num_heads"),
        ({"dataset": {"name": "ranking"}}, "model.name must be ranking"),
        ({"dataset": {"name": "text"}}, "dataset.vocab_size must be at least 256"),
        ({"compile": {"enabled": True, "backend": "eager", "mode": "max-autotune"}}, "compile.mode is inductor's"),
        ({"checkpoint": {"dir": ""}}, "checkpoint.dir must be"),
        ({"model": 3}, "model must be a section"),
    ],
)
def test_a_wrong_config_is_told_by_its_key(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config(data)
    assert words in str(caught.value)


@pytest.mark.parametrize("installed", [True, False], ids=["PyYAML", "plain"])
def test_a_config_error_names_the_file_and_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, installed: bool
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "mine.yaml"
    with pytest.raises(ConfigError, match=r"mine\.yaml: No such file"):
        read_config(path)
    for text, words in (
        ("trainin: {}\n", ":1: unknown key trainin: did you mean training"),
        ("training:\n  seed: 1\n  sed: 1\n", ":3: unknown key training.sed: did you mean training.seed"),
        ("training: {seed: 1,\n", ": line 1: " if not installed else ": line 2: "),
        ("model:\n  num_heads: 3\n", ":1: model.model_dim"),
        ("model:\n\n  model_dim: 30\n", ":3: model.model_dim"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_config(path)
        assert f"{path}{words}" in str(caught.value)
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(path)


@pytest.mark.parametrize(
    "text",
    [
        "training: {seed: 2024-13-45}",
        "training: {seed: 0x_}",
        "training: {seed: !!int abc}",
        "training: {seed: !!timestamp foo}",
        "training: &t {max_steps: *t}",
        "training: {max_steps: %s}" % ("9" * 5000),
        "optimizer: {lr: %s}" % ("9" * 400),
        "optimizer: {betas: [%s, 0.9]}" % ("9" * 400),
        "profiling: {ranks: [.inf]}",
        "profiling: {ranks: [0.7]}",
        "training: " + "[" * 2000,
        "training: {max_steps: %s}" % ("k" * 100_000),
    ],
    ids=lambda text: text[:30],
)
def test_no_value_makes_a_traceback_or_a_page(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert len(str(caught.value)) < 500


def test_numbers_and_ranks_are_read_as_they_are_meant() -> None:
    assert build_config(yaml.safe_load("optimizer:\n  lr: 3e-4\n")).optimizer.lr == 3e-4
    assert build_config({"optimizer": {"betas": [0, "9e-1"]}}).optimizer.betas == (0.0, 0.9)
    for given, wanted in ((0, (0,)), ([0, 3], (0, 3)), ("0,3", (0, 3)), ("all", "all")):
        assert build_config({"profiling": {"ranks": given}}).profiling.ranks == wanted
    assert build_config({}) == Config()
    assert build_config({"training": None, "model": {"mlp_hidden_dim": None}}) == Config()


def test_keys_that_change_nothing_beside_the_others_are_named(tmp_path: Path) -> None:
    path = tmp_path / "idle.yaml"
    path.write_text("optimizer: {momentum: 0.9, eps: 1e-6}\nfsdp: {wrap: model}\ndataloader: {prefetch_factor: 4}\n")
    assert find_idle_keys(path, read_config(path)) == [
        "optimizer.momentum has no effect without optimizer.name: sgd",
        "fsdp.wrap has no effect without distributed.mode: fsdp",
        "dataloader.prefetch_factor has no effect without dataloader.num_workers > 0",
    ]
    path.write_text("profiling: {active: 5}\ndataloader: {num_workers: 1, prefetch_factor: 4}\n")
    assert find_idle_keys(path, read_config(path)) == ["profiling.active has no effect without profiling.enabled: true"]
