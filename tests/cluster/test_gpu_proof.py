"""The proof of scripts/gpu_proof runs from end to end, also where there is no GPU; its figures are of no use then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from gpuproof.page import PARTS, build_page, read_all  # noqa: E402 - found by the line above


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.namespaces
@pytest.mark.timeout(400)
def test_every_part_is_measured_and_makes_a_page(nodes3: Cluster, tmp_path: Path) -> None:
    nodes = nodes3.write_list(tmp_path / "nodes.txt", python=nodes3.python, nodes=(1, 2))
    out = tmp_path / "figures"
    words = ["--nodes", str(nodes), "--out", str(out), "--pairs", "1"]
    for part in (
        ["training", "--only", "ddp", "--steps", "4", "--warm-up", "1"],
        ["collectives"],
        ["faults", "--only", "kill"],
    ):
        done = nodes3.run_on_launch_host(
            [sys.executable, str(PROJECT / "scripts" / "gpu_proof"), *part, *words], cwd=tmp_path, timeout_s=120
        )
        assert done.exit_code == 0, done
    found = read_all(out)
    ((trained,), (reduced,), (broken,)) = (found[part] for part in PARTS)
    assert [row["tool"] for row in trained.rows] == ["aorta-launch", "torchrun by hand"]
    assert {row["tool"] for row in reduced.rows} == {"check --level 1", "all_reduce by hand"}
    (killed,) = broken.rows
    assert (killed["right"], killed["family"], killed["named"]["rank"]) == (True, "KILLED", 1)
    assert "every node with a GPU of its own" in build_page(found)


def test_a_wrong_word_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    words = [sys.executable, str(PROJECT / "scripts" / "gpu_proof"), "trainings", "--nodes", "none.txt"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no part is called trainings" in done.stderr
