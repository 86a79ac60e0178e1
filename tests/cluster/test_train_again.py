"""Launched again with another config: what fits goes on, what does not is told in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

PROJECT = Path(__file__).resolve().parents[2]
# One process takes all turns: each would pay for the import of torch else.
TURNS = """
import contextlib, io, json, sys
sys.path[:0] = [sys.argv[1] + "/scripts", sys.argv[1]]
import train
told = []
for text in json.loads(sys.argv[2]):
    with open("turn.yaml", "w") as file:
        file.write(text)
    sys.argv[1:] = ["--config", "turn.yaml"]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            train.main()
        except SystemExit as error:
            code = error.code
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    told.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""
BASE = """
training: {{max_steps: {steps}, batch_size: 4, eval_interval: 100, eval_samples: 8}}
model: {{model_dim: {dim}, num_layers: 1, num_heads: 2}}
dataset: {{sequence_length: 8}}
optimizer: {{{optimizer}}}
scheduler: {{name: constant, warmup_steps: 0}}
checkpoint: {{dir: again, interval: 2, resume: {resume}}}
"""


def turn(steps: int, optimizer: str = "lr: 0.01, weight_decay: 0.1", dim: int = 16, resume: str = "true") -> str:
    return BASE.format(steps=steps, dim=dim, optimizer=optimizer, resume=resume)


def take(folder: Path, *turns: str) -> list[list[Any]]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "AORTA_CONFIG_NAME")
    env = {name: value for name, value in os.environ.items() if name not in names}
    env |= {
        "HOME": str(folder),
        "AORTA_OUTPUT_DIR": str(folder / "outputs"),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    words = [sys.executable, "-c", TURNS, str(PROJECT), json.dumps(turns)]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_what_another_config_does_to_a_checkpoint_is_told_or_done(tmp_path: Path) -> None:
    told = take(
        tmp_path,
        turn(4),
        turn(3),
        turn(5, "lr: 1.0, weight_decay: 0.9"),
        turn(4, resume="false"),
        turn(5, "lr: 1.0, weight_decay: 0.1"),
        turn(6, "lr: 0.01, name: sgd"),
    )
    assert [code for code, _, _ in told] == [0, 0, 0, 0, 0, 2], told
    assert "nothing is left to do: the checkpoint is of step 4 of 3" in told[1][2]
    # A decay of nine tenths leaves little of the weights, one of a tenth most of them.
    last = [float(told[number][1].splitlines()[-1].split("last ")[1].split()[0]) for number in (2, 4)]
    assert last[0] != pytest.approx(last[1], abs=1e-3), told
    told += take(tmp_path, turn(6, dim=32))
    for line, words in (
        (told[5][2], "optimizer.name is sgd, the checkpoint of step 5"),
        (told[6][2], "the shape (32, 32)"),
    ):
        assert line.count("\n") == 1, line
        assert words in line
        assert line.rstrip().endswith("name another checkpoint.dir, or start anew with checkpoint.resume: false")
    assert told[6][0] == 2


def test_a_loss_that_is_no_number_ends_the_run_and_such_weights_are_not_saved(tmp_path: Path) -> None:
    ((code, _, _),) = take(tmp_path, turn(1, "lr: 1e30, weight_decay: 0, name: sgd", resume="false"))
    assert code == "FloatingPointError: the weights are not finite after step 1: they are not saved"
    assert not list(tmp_path.rglob("step_*"))
