"""The merged log of a node after its controller was killed between writing a rank's file and that log."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from runs import build_plan

from orchestrator.output import node_log
from orchestrator.output.node_log import NodeLogWriter
from orchestrator.phases import logstore
from orchestrator.phases.logstore import LogStore
from orchestrator.plan.paths import ExperimentPaths


class KilledError(BaseException):
    """The controller ends here."""


def _kill_after(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let the merged log take so many bytes of the next block, and then have the controller killed."""

    def write(writer: NodeLogWriter, data: bytes) -> None:
        writer._file.write(data[:size])
        raise KilledError

    monkeypatch.setattr(NodeLogWriter, "_write", write)


@pytest.mark.parametrize("size", [0, 1, 12, 1000])
@pytest.mark.parametrize("before", [b"", b"one\n", b"one\ntw", b"one\ntwo\n"])
def test_the_merged_log_lacks_nothing_after_a_kill_between_the_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes, size: int
) -> None:
    whole, cut = b"one\ntwo\nthree\nfour\n", len(b"one\ntwo\nthree\nfo")
    paths, node = ExperimentPaths(tmp_path), build_plan(1).nodes[0]
    first = LogStore(node, paths, lambda *_: None)
    first.write("0.err", 0, b"first\nand half")
    first.write("0.out", 0, before)
    with monkeypatch.context() as killed:
        _kill_after(killed, size)
        with pytest.raises(KilledError):
            first.write("0.out", len(before), whole[len(before) : cut])
    second = LogStore(node, paths, lambda *_: None)
    # A pump begins with all of them.
    assert second.offsets()["0.out"] == cut
    second.write("0.out", cut, whole[cut:])
    second.write("0.err", len(b"first\nand half"), b" a line\n")
    second.close()
    merged = paths.node_log(0, node.node.name).read_text().splitlines()
    lines = ["first", "one", "two", "three", "four", "and half a line"]
    assert merged == [f"[rank 0] {line}" for line in lines]
    assert not [path for path in paths.logs.iterdir() if path.name.startswith(".")], "the run is over"


@pytest.mark.parametrize("size", [0, 7, 1000])
def test_a_gap_is_told_once_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    paths, node = ExperimentPaths(tmp_path), build_plan(1).nodes[0]
    first = LogStore(node, paths, lambda *_: None)
    first.write("0.out", 0, b"one\ntw")
    with monkeypatch.context() as killed:
        _kill_after(killed, size)
        with pytest.raises(KilledError):
            first.drop("0.out", 6, 1 << 20)
    second = LogStore(node, paths, lambda *_: None)
    assert second.offsets()["0.out"] == 1 << 20
    assert second.drop("0.out", 6, 1 << 20) == 0
    second.close()
    assert paths.node_log(0, node.node.name).read_text().splitlines() == [
        "[rank 0] one",
        "[rank 0] tw",
        "[rank 0 …] (1024.0 KiB were dropped here)",
    ]


@pytest.mark.parametrize("text", ["", "0.out", "0.out x y", "0.out 4 9999", "0.out 9999 0", "\0\0"])
def test_a_torn_note_of_what_came_last_costs_nothing_that_is_there(tmp_path: Path, text: str) -> None:
    paths, node = ExperimentPaths(tmp_path), build_plan(1).nodes[0]
    first = LogStore(node, paths, lambda *_: None)
    first.write("0.out", 0, b"one\ntwo\n")
    first.close(over=False)
    (intent,) = paths.logs.glob(".merging_*")
    intent.write_text(text)
    second = LogStore(node, paths, lambda *_: None)
    second.write("0.out", second.offsets()["0.out"], b"three\n")
    second.close()
    merged = paths.node_log(0, node.node.name).read_text().splitlines()
    assert set(merged) == {"[rank 0] one", "[rank 0] two", "[rank 0] three"}


@pytest.mark.parametrize(("rest", "shown"), [(b"", []), (b" and\nmore\n", ["[rank 0 …]  and", "[rank 0] more"])])
def test_a_line_that_was_told_before_it_ended_is_told_once(tmp_path: Path, rest: bytes, shown: Sequence[str]) -> None:
    """A controller may end between the last byte of its nodes and the end of the run, and a lost node may come back."""
    paths, node = ExperimentPaths(tmp_path), build_plan(1).nodes[0]
    first = LogStore(node, paths, lambda *_: None)
    first.write("0.out", 0, b"whole\nopen")
    first.close()
    for _ in range(2):
        second = LogStore(node, paths, lambda *_: None)
        begin = second.offsets()["0.out"]
        second.write("0.out", 10, rest)
        assert begin in {10, 10 + len(rest)}
        second.close()
    assert paths.node_log(0, node.node.name).read_text().splitlines() == ["[rank 0] whole", "[rank 0] open", *shown]


Step = tuple[str, bytes | int]
"""What comes of a file: bytes, or a gap of so many."""


def _make_steps(chance: random.Random) -> list[Step]:
    steps: list[Step] = []
    for _ in range(chance.randrange(1, 14)):
        name = chance.choice(["0.out", "0.err"])
        if chance.random() < 0.15:
            steps.append((name, chance.randrange(1, 30)))
        else:
            steps.append((name, bytes(chance.choices(b"abcdef\n", [1] * 6 + [0.7], k=chance.randrange(1, 40)))))
    return [*steps, ("0.out", b"end\n"), ("0.err", b"end\n")]


def _take(store: LogStore, steps: Sequence[Step]) -> None:
    """Give a store all steps from the beginning, as a node does that knows nothing of what was stored."""
    places = {"0.out": 0, "0.err": 0}
    here = store.offsets()
    for name, what in steps:
        begin = places[name]
        size = what if isinstance(what, int) else len(what)
        places[name] = begin + size
        if begin + size <= here[name]:
            continue
        if isinstance(what, int):
            store.drop(name, begin, begin + size)
        else:
            store.write(name, begin, what)


@pytest.mark.parametrize("seed", range(60))
def test_the_merged_log_is_the_same_with_and_without_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for module in (node_log, logstore):
        monkeypatch.setattr(module, "PIECE_BYTES", 8)
    chance = random.Random(seed)
    steps, node = _make_steps(chance), build_plan(1).nodes[0]
    calm = ExperimentPaths(tmp_path / "calm")
    _take(store := LogStore(node, calm, lambda *_: None), steps)
    store.close()
    wanted = calm.node_log(0, node.node.name).read_text().splitlines()

    paths = ExperimentPaths(tmp_path / "killed")
    for _ in range(3):
        cut = chance.randrange(len(steps))
        store = LogStore(node, paths, lambda *_: None)
        _take(store, steps[:cut])
        with monkeypatch.context() as killed:
            _kill_after(killed, chance.choice([0, 1, 9, 30, 1000]))
            try:
                _take(store, steps[: cut + 1])
            except KilledError:
                continue
        store.close(over=False)
    _take(store := LogStore(node, paths, lambda *_: None), steps)
    store.close()
    for stream in (calm.rank_out, calm.rank_err):
        twin = paths.logs / stream(0).name
        assert twin.read_bytes() == stream(0).read_bytes()
    assert paths.node_log(0, node.node.name).read_text().splitlines() == wanted
