"""examples/README.md names every example, and the versions that scripts/test --all installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
EXAMPLES = PROJECT / "examples"
PAGE = (EXAMPLES / "README.md").read_text()
LINES = 130


def test_the_page_names_every_example_and_no_other() -> None:
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".yaml"}}
    named = set(re.findall(r"\b\w+\.(?:py|yaml)\b", PAGE)) - {"default_config.yaml"}
    assert there == named


def test_the_page_names_the_versions_that_are_pinned() -> None:
    pinned = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["examples"]
    assert all("==" in word for word in pinned)
    told = set(re.findall(r"\b[a-z]+==[\d.]*\d", PAGE))
    assert {word.partition("==")[0] for word in told} == {"accelerate", "lightning", "transformers"}
    assert told <= set(pinned)


def test_an_example_is_short_enough_to_be_read_at_once() -> None:
    assert {path.name: n for path in EXAMPLES.glob("*.py") if (n := len(path.read_text().splitlines())) > LINES} == {}
