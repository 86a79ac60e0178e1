"""No key of the training config is dead: each, changed alone, changes a model, a step, a file or a trace."""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from key_rows import ELSEWHERE, ROWS, Config, Row
from ranks import PROJECT, Ranks

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

sys.path.insert(0, str(PROJECT / "scripts"))

from workload.config import SECTIONS  # noqa: E402 - found by the line above

BASE: Config = {
    "training": {"max_steps": 3, "batch_size": 2, "eval_samples": 6, "log_interval": 3, "eval_interval": 3},
    "model": {"model_dim": 8, "num_heads": 2, "num_layers": 1},
    "dataset": {"vocab_size": 16, "sequence_length": 8, "num_samples": 400},
    "scheduler": {"warmup_steps": 1},
}
WANDB = """
import json, os, pathlib
class Settings:
    def __init__(self, **words): pass
class Run:
    def log(self, values, step): pass
    def finish(self, exit_code): pass
def init(project, mode, dir, name, group, config, settings):
    pathlib.Path(dir, f"wandb {project} {mode} {os.environ['RANK']}").touch()
    return Run()
"""


def join(*parts: Config) -> Config:
    whole: Config = {}
    for part in parts:
        for section, keys in part.items():
            whole[section] = {**whole.get(section, {}), **keys}
    return copy.deepcopy(whole)


def build_cases(folder: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Of every row the base, the base again to see what differs by itself, and the change; which case each is."""
    cases: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}

    def add(part: str, key: str, case: dict[str, Any]) -> None:
        # Many rows have one base: it runs once, and once again.
        text = part * (part == "again") + json.dumps(case)
        names[f"{key}.{part}"] = next((name for name, other in cases.items() if other["text"] == text), f"{key}.{part}")
        cases.setdefault(names[f"{key}.{part}"], {**case, "text": text})

    for key, row in ROWS.items():
        section, name = key.split(".")
        base = join(BASE, row.base)
        changed = join(base, row.also, {section: {name: row.value}})
        if key == "checkpoint.resume":
            add("before", key, {"config": base, **row.more})
            longer = {"training": {"max_steps": 4}}
            base, changed = join(base, longer), join(changed, longer)
        for part, config in (("base", base), ("again", base), ("changed", changed)):
            add(part, key, {"config": config, **row.more})
    text = json.dumps([{"name": name, **case} for name, case in cases.items()]).replace("FOLDER", str(folder))
    found: list[dict[str, Any]] = json.loads(text)
    return found, names


def look(folder: Path, name: str, row: Row) -> list[Any]:
    seen = [json.loads((folder / name / f"seen_{rank}.json").read_text()) for rank in range(2)]
    return [[one.get(word) for word in row.looked_at.split()] for one in seen]


def test_every_key_of_the_schema_has_a_row_and_every_row_a_key() -> None:
    keys = {f"{section}.{entry.name}" for section, kind in SECTIONS.items() for entry in dataclasses.fields(kind)}
    assert keys == set(ROWS) | ELSEWHERE
    elsewhere = (Path(__file__).parent / "test_train_script.py").read_text()
    for section, name in (key.split(".") for key in ELSEWHERE):
        assert f'{{"{section}": {{"{name}":' in elsewhere or f'{section}={{"{name}":' in elsewhere


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_key_changes_a_model_a_step_a_file_or_a_trace(tmp_path: Path) -> None:
    for name, text in (("one", "once upon a time " * 300), ("other", "there was no other " * 300)):
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "stand_in").mkdir()
    (tmp_path / "stand_in" / "wandb.py").write_text(WANDB)
    cases, names = build_cases(tmp_path)
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    script = Path(__file__).parent / "key_cases.py"
    ranks = Ranks(tmp_path, (1, 1), script, tmp_path, PYTHONPATH=str(tmp_path / "stand_in"))
    assert ranks.wait(380) == [0, 0], "\n".join(ranks.logs)[-5000:]
    dead, vague = [], []
    for key, row in ROWS.items():
        base, again, changed = (look(tmp_path, names[f"{key}.{part}"], row) for part in ("base", "again", "changed"))
        dead += [key] * (base == changed)
        # The second of two runs that go on from one checkpoint finds nothing left to do.
        vague += [key] * (base != again and key != "checkpoint.resume")
    assert dead == []
    assert vague == [], "these differ by themselves: their rows show nothing"
