from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from workload.config import Config, ConfigError, build_config, read_config  # noqa: E402 - found by the line above
from workload.plain_yaml import PlainYamlError, parse_plain_yaml  # noqa: E402


@pytest.mark.parametrize(
    "path", [PROJECT / "config" / name for name in ("cpu_demo.yaml", "two_nodes.yaml")], ids=lambda path: path.name
)
def test_our_configs_read_the_same_without_pyyaml(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(path)
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert read_config(path) == config


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n\n",
        "a:\n  b: 1\n  c:\n    d: 1.5\n  e: true\nf: null\n",
        "a: [1, two, \"three\"]\nb: []\nc: 'it # is'  # said\nd: x#y\n",
        "---\na:\n    b: -3\n    c: .5\nd: ~\n",
        "a: False\nb: 1.0e-3\nc: http://x:80/y\n",
    ],
)
def test_the_plain_reader_agrees_with_pyyaml(text: str) -> None:
    assert parse_plain_yaml(text) == (yaml.safe_load(text) or {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:\n  - 1\n", "line 2"),
        ("a: {b: 1}\n", "line 1"),
        ("a:\n    b: 1\n  c: 2\n", "line 3"),
        ("a: 1\na: 2\n", "given twice"),
        ("  a: 1\n", "line 1"),
        ("a: |\n  text\n", "line 1"),
    ],
)
def test_the_plain_reader_refuses_what_it_does_not_know(text: str, words: str) -> None:
    with pytest.raises(PlainYamlError, match=words):
        parse_plain_yaml(text)


def test_the_launchers_section_is_not_looked_at() -> None:
    text = "launch:\n  env: {A: 1}\n  args:\n    - x\ntraining:\n  seed: 5\n"
    assert parse_plain_yaml(text, skip=("launch",)) == {"training": {"seed": 5}}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"training": {"max_step": 1}}, "unknown key training.max_step: did you mean training.max_steps?"),
        ({"optimiser": {}}, "unknown key optimiser: did you mean optimizer?"),
        ({"training": {"max_steps": "many"}}, "training.max_steps must be a whole number"),
        ({"training": {"max_steps": True}}, "training.max_steps must be a whole number"),
        ({"training": {"shuffle_targets": "no"}}, "must be true or false"),
        ({"training": {"log_every": 0}}, "training.log_every must be at least 1"),
        ({"model": {"d_model": 10, "n_heads": 4}}, "must be a multiple of n_heads"),
        ({"model": 3}, "model must be a section"),
    ],
)
def test_a_wrong_config_is_told_by_its_key(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config(data)
    assert words in str(caught.value)


def test_a_config_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(ConfigError, match=r"mine\.yaml: No such file"):
        read_config(path)
    path.write_text("trainin: {}\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: unknown key trainin: did you mean training"):
        read_config(path)


def test_a_number_that_yaml_takes_for_a_text_is_a_number() -> None:
    assert build_config(yaml.safe_load("optimizer:\n  lr: 3e-4\n")).optimizer.lr == 3e-4
    assert build_config({}) == Config()
