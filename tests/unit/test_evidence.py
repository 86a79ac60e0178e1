from __future__ import annotations

import base64
import json
import queue
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from runs import build_plan

from orchestrator.phases.evidence import Gathering
from orchestrator.phases.reader import NodeReader
from orchestrator.plan.paths import ExperimentPaths

Answer = Mapping[str, Any]


class Reader:
    """A reader whose node answers when the test says so."""

    def __init__(self, node_rank: int) -> None:
        self.node = build_plan(1, 1, 1).nodes[node_rank]
        self.asked: list[Answer] = []
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.alive = True
        self.suspect = False

    def is_alive(self) -> bool:
        return self.alive

    def ask_ahead(self, order: Answer) -> queue.SimpleQueue[Answer]:
        self.asked.append(order)
        return self.answers


def build(tmp_path: Path, readers: list[Reader]) -> Gathering:
    return Gathering(ExperimentPaths(tmp_path), cast("Sequence[NodeReader]", readers))


def test_what_every_node_knew_is_saved_and_told(tmp_path: Path) -> None:
    readers = [Reader(0), Reader(1)]
    evidence = build(tmp_path, readers)
    evidence.gather()
    evidence.gather()
    assert [reader.asked for reader in readers] == [[{"op": "evidence"}]] * 2
    for reader in readers:
        reader.answers.put({"t": "answer", "op": "evidence", "id": "1", "n": 9, "load": reader.node.node_rank})
    evidence.wait()
    assert evidence.told == {0: {"load": 0}, 1: {"load": 1}}
    assert json.loads((tmp_path / "diagnosis" / "node_1.json").read_text()) == {"load": 1}


def test_a_node_that_is_gone_keeps_nobody_waiting(tmp_path: Path) -> None:
    here, gone = Reader(0), Reader(1)
    evidence = build(tmp_path, [here, gone])
    evidence.gather()
    here.answers.put({"t": "answer", "load": 1})
    threading.Timer(0.1, lambda: setattr(gone, "alive", False)).start()
    begin = time.monotonic()
    evidence.wait()
    assert time.monotonic() - begin < 5
    assert evidence.told == {0: {"load": 1}}


def test_nobody_is_asked_while_all_is_well(tmp_path: Path) -> None:
    reader = Reader(0)
    evidence = build(tmp_path, [reader])
    evidence.wait()
    assert reader.asked == []
    assert not (tmp_path / "diagnosis").exists()


def test_a_flight_recorder_that_a_rank_left_is_kept_as_it_is(tmp_path: Path) -> None:
    reader = Reader(0)
    evidence = build(tmp_path, [reader])
    evidence.gather()
    left = {"rank": 3, "data": base64.b64encode(zlib.compress(b"a dump")).decode(), "how": "file", "age_s": 61.0}
    reader.answers.put({"t": "answer", "load": 1, "flight": {"ranks": [left], "why": {}}})
    evidence.wait()
    assert (tmp_path / "diagnosis" / "flight" / "rank_0003.pickle").read_bytes() == b"a dump"
    assert evidence.told == {0: {"load": 1}}
