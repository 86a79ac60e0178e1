"""What an impatient or unkind user does: the launcher tells it, and its own screen stays what it was."""

from __future__ import annotations

from pathlib import Path

from cluster import Cluster
from scenes import Scene

ESCAPES = r"""
import os, time
if os.environ["RANK"] == "1":
    raise RuntimeError("caf\u00e9 \x1b[31mred \x1b]0;title\x07")
time.sleep(60)
"""


def test_nodes_that_are_not_ready_are_told_with_q_too(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1])
    scene.write("ok.py", "")
    done = scene.launch("-q", "--nproc-per-node", "gpu", "ok.py")
    assert done.exit_code == 3, done
    assert "FAIL gpu-count" in done.stderr, done


def test_words_of_a_failed_rank_do_not_reach_the_terminal_as_orders(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("escapes.py", ESCAPES)
    done = scene.launch("escapes.py")
    assert done.exit_code == 1, done
    assert "first failure: rank 1" in done.stderr, done
    assert "caf\u00e9 red" in done.stderr, done
    assert "\x1b" not in done.stderr, done
