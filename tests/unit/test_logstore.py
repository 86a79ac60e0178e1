from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from runs import build_plan

from orchestrator.phases.logstore import LogStore
from orchestrator.plan.paths import ExperimentPaths


class Screen:
    def __init__(self) -> None:
        self.shown = b""

    def show(self, node_rank: int, rank: int | None, stream: str, data: bytes) -> None:
        del node_rank, rank, stream
        self.shown += data


def make_store(tmp_path: Path) -> tuple[LogStore, ExperimentPaths, Screen]:
    paths, screen = ExperimentPaths(tmp_path), Screen()
    return LogStore(build_plan(1).nodes[0], paths, screen.show), paths, screen


def test_what_comes_twice_is_written_and_shown_once(tmp_path: Path) -> None:
    store, paths, screen = make_store(tmp_path)
    store.write("0.out", 0, b"one\ntwo\n")
    store.write("0.out", 4, b"two\nthree\n")
    store.close()
    assert paths.rank_out(0).read_bytes() == screen.shown == b"one\ntwo\nthree\n"


def test_a_full_disk_leaves_a_true_beginning_and_the_screen_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, paths, screen = make_store(tmp_path)
    store.write("0.out", 0, b"one\n")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            store.write("0.out", 4, b"two\n")
    store.write("0.out", 8, b"three\n")
    assert paths.rank_out(0).read_bytes() == b"one\n"
    assert store.offsets()["0.out"] == 4
    # A pump that is opened anew sends what is missing.
    store.write("0.out", 4, b"two\nthree\n")
    store.close()
    assert paths.rank_out(0).read_bytes() == screen.shown == b"one\ntwo\nthree\n"
