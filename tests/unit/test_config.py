from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config import parse_config, read_config
from orchestrator.errors import ConfigError

ROOT = Path(__file__).parents[2]

TEXT = """\
# kept
launch:
  args: [--lr, 3.0e-4, 007, yes]
base: &base {lr: 1, opt: {name: adam, eps: 1}}
training:
  <<: *base
  other: !custom {x: 1}
again: *base
"""


def set_on(text: str, *sets: str) -> Any:
    return yaml.load(parse_config(text, "c", sets).text, Loader=yaml.BaseLoader)


def test_without_set_the_text_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert read_config(path).text.encode() == path.read_bytes()


def test_scalars_keep_the_characters_of_the_file() -> None:
    (entry,) = parse_config(TEXT, "c").launch
    assert (entry.key, entry.text, entry.where) == ("args", ["--lr", "3.0e-4", "007", "yes"], "c:3")


def test_set_changes_one_place_of_a_copy() -> None:
    changed = set_on(TEXT, "training.opt.eps=2", "training.lr=3e-4", "new.deep.key='a b'", "launch.args.1=[x]")
    assert changed["training"]["opt"] == {"name": "adam", "eps": "2"}
    assert changed["base"] == changed["again"] == {"lr": "1", "opt": {"name": "adam", "eps": "1"}}
    assert changed["new"] == {"deep": {"key": "a b"}}
    assert changed["launch"]["args"] == ["--lr", ["x"], "007", "yes"]
    assert changed["training"]["other"] == {"x": "1"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20", 20),
        ("3e-4", 3e-4),
        ("1E5", 1e5),
        ("-2.5e3", -2500.0),
        ("true", True),
        ("", None),
        ("null", None),
        ("'20'", "20"),
        ("[1, b]", [1, "b"]),
        ("{a: 1}", {"a": 1}),
        ("a=b", "a=b"),
        ("é🚀", "é🚀"),
    ],
)
def test_set_values_are_yaml_and_numbers_are_numbers(text: str, value: object) -> None:
    assert yaml.safe_load(parse_config("a: 1", "c", [f"a={text}"]).text) == {"a": value}


def test_set_in_an_empty_section_or_file() -> None:
    assert set_on("training:\n", "training.x=1") == {"training": {"x": "1"}}
    assert set_on("# nothing\n", "training.x=1") == {"training": {"x": "1"}}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("a", "KEY=VALUE"),
        ("=1", "KEY=VALUE"),
        ("a..b=1", "KEY=VALUE"),
        ("a.b=1", "no section"),
        ("l.7=1", "no item of a list of 1"),
        ("a=[1", "not YAML"),
        ("a={x: 1, x: 2}", "key x stands here"),
    ],
)
def test_a_set_that_does_not_fit_names_itself(assignment: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("a: 1\nl: [1]\n", "c", [assignment])
    assert caught.value.where == f"--set {assignment}"
    assert words in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "c.yaml:5", "key c stands here and in line 3"),
        ("launch: {}\nx: 1\nlaunch: {}\n", "c.yaml:3", "line 1"),
        ("a: [1\nb: 2\n", "c.yaml:2", "not YAML"),
        ("a:\n\tb: 1\n", "c.yaml:2", "not YAML"),
        ("- a\n- b\n", "c.yaml:1", "not a mapping"),
        ("just text\n", "c.yaml:1", "not a mapping"),
        ("a: 1\n---\nb: 1\n", "c.yaml:2", "not YAML"),
        ("a: &x [*x]\n", "c.yaml:1", "holds itself"),
        ("launch: 5\n", "c.yaml:1", "expected a mapping"),
        ("a: 1\nlaunch:\n  grace_s: !!python/object:os.system 5\n", "c.yaml:3", "could not determine a constructor"),
    ],
)
def test_bad_configs_say_file_and_line(text: str, place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "c.yaml")
    assert caught.value.where == place
    assert words in caught.value.what
    assert caught.value.remedy


def test_files_that_are_no_config(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"a: 1\nb: \xff")
    for path, words in ((tmp_path / "none", "no such file"), (tmp_path, "a folder"), (bad, "not UTF-8")):
        with pytest.raises(ConfigError) as caught:
            read_config(path)
        assert words in caught.value.what
        assert str(path) in caught.value.where


def test_the_training_script_reads_the_copy_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    read_training = importlib.import_module("workload.config").read_config
    path = ROOT / "config" / "two_nodes.yaml"
    copy = tmp_path / "copy.yaml"
    copy.write_text(read_config(path, ["training.max_steps=20", "optimizer.lr=3e-4"]).text)
    before, after = read_training(path), read_training(copy)
    assert (after.training.max_steps, after.optimizer.lr) == (20, 3e-4)
    assert after.model == before.model
    for name in [name for name in sys.modules if name.partition(".")[0] == "workload"]:
        del sys.modules[name]
