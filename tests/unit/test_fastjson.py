"""JSON without the module json: the same documents, the same refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import fastjson

PROJECT = str(Path(__file__).parents[2])
DOCUMENTS: list[Any] = [
    {},
    [],
    {"a": 1, "b": [1.5, -2, 10**20, 1e300, None, True, False, "x"], "c": {"d": {}}},
    {"text": 'quotes " and \\ and \n and \x00 and €'},
    {"surrogate": "\udcff"},
    {"nan": float("inf")},
    {1: "a number as a name", None: 2},
    [(1, 2), [[]]],
]


@pytest.mark.parametrize("value", DOCUMENTS, ids=str)
def test_it_writes_what_json_writes(value: Any) -> None:
    assert fastjson.dumps(value) == json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("value", DOCUMENTS, ids=str)
def test_it_reads_what_json_reads(value: Any) -> None:
    text = json.dumps(value, indent=2)
    assert fastjson.loads(text) == json.loads(text)
    assert fastjson.loads(f" {text}\n".encode()) == json.loads(text)


@pytest.mark.parametrize("text", ["", "{", "{} {}", "nonsense", '{"a": }', "[1, 2", '"\x01"', b"\xff"])
def test_it_refuses_what_json_refuses(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of either kind, as json does
        json.loads(text)
    with pytest.raises(ValueError):  # noqa: PT011
        fastjson.loads(text)


def test_a_value_that_json_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        fastjson.dumps({"a": {1}})


def test_it_brings_neither_json_nor_regular_expressions() -> None:
    line = "import sys; from orchestrator.node import fastjson; print([n for n in ('re', 'json', 'typing') if n in sys.modules])"
    told = subprocess.check_output([sys.executable, "-S", "-c", line], text=True, env={"PYTHONPATH": PROJECT})
    assert told == "[]\n"


def test_without_the_c_half_it_is_json() -> None:
    line = "import sys; sys.modules['_json'] = None; from orchestrator.node import fastjson as f; print(f.dumps({'a': 1}), f.loads('[1]'))"
    told = subprocess.check_output([sys.executable, "-S", "-c", line], text=True, env={"PYTHONPATH": PROJECT})
    assert told == '{"a":1} [1]\n'
