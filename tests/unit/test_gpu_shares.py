"""How scripts/gpu_cluster shares out GPUs, and what it says where it cannot."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import _gpu_cluster
from cluster import ClusterError


@pytest.mark.parametrize(
    ("gpus", "nodes", "each", "words", "expected"),
    [
        (8, 2, None, {"share": False}, ["0,1,2,3", "4,5,6,7"]),
        (8, 3, None, {"share": False}, ["0,1", "2,3", "4,5"]),
        (8, 4, 1, {"share": False}, ["0", "1", "2", "3"]),
        (2, 2, None, {"share": False}, ["0", "1"]),
        (1, 2, None, {"share": True}, ["0", "0"]),
        (2, 2, 2, {"share": True}, ["0,1", "0,1"]),
        (2, 3, None, {"share": True}, ["0", "1", "0"]),
    ],
)
def test_shares_are_equal_and_in_order(
    gpus: int, nodes: int, each: int | None, words: dict[str, bool], expected: list[str]
) -> None:
    assert list(_gpu_cluster.share_out(range(gpus), nodes, each, **words).values()) == expected


@pytest.mark.parametrize(("nodes", "each", "word"), [(3, None, "--share"), (2, 2, "--share"), (1, 3, "1 to 2")])
def test_too_few_gpus_are_told_with_the_way_out(nodes: int, each: int | None, word: str) -> None:
    with pytest.raises(ClusterError, match=word):
        _gpu_cluster.share_out([0, 1], nodes, each, share=False)


def test_what_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(_gpu_cluster, "STATE", tmp_path / "none")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert _gpu_cluster.main(["2"]) == 1
    assert capsys.readouterr().err == (
        "scripts/gpu_cluster: nodes with networks of their own need root: sudo scripts/gpu_cluster …\n"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **words: None if name == "sshd" else which(name, **words))
    assert _gpu_cluster.main(["2"]) == 1
    assert capsys.readouterr().err == "scripts/gpu_cluster: sshd is not installed: apt-get install openssh-server\n"
    with pytest.raises(SystemExit):
        _gpu_cluster.main([])
