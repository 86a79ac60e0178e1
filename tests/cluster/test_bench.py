"""The benchmark runs from end to end, and nothing costs three times what it may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from benchmark.judge import at_size, judge  # noqa: E402 - found by the line above
from benchmark.parts import list_words, read_part  # noqa: E402
from benchmark.results import read_results  # noqa: E402

NODES = 2


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.namespaces
@pytest.mark.timeout(900)
@pytest.mark.parametrize("word", list_words())
def test_a_part_is_measured_and_no_must_is_missed_by_three_times(word: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    words = [str(PROJECT / "scripts" / "bench"), word, "--nodes", str(NODES), "--runs", "1", "--out", str(figures)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    results = read_results(figures)
    small = [at_size(must, NODES) for must in read_part(word).musts if not must.against_nodes]
    missed = [reached for reached in (judge(results, word, must) for must in small) if not reached.ok]
    assert not missed, done.stdout
