from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from runs import build_plan

from orchestrator.phases.catchup import CatchUp
from orchestrator.phases.loggaps import add_gap, cut_gaps, join_gaps, read_gaps
from orchestrator.phases.logstore import LogStore
from orchestrator.phases.logtimes import TimeWriter, find_since, read_marks
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


def test_a_gap_keeps_offsets_equal_and_is_told_everywhere(tmp_path: Path) -> None:
    store, paths, screen = make_store(tmp_path)
    store.write("0.out", 0, b"one\ntw")
    assert store.drop("0.out", 6, 1 << 20) == (1 << 20) - 6
    store.write("0.out", 1 << 20, b"end\n")
    assert store.drop("0.out", 6, 1 << 20) == 0, "told again by a new link"
    store.close()
    assert paths.rank_out(0).read_bytes() == b"one\ntw".ljust(1 << 20, b"\0") + b"end\n"
    assert paths.rank_out(0).stat().st_blocks * 512 < 1 << 16
    assert read_gaps(paths.gaps_jsonl) == {"rank_0000.out": [(6, 1 << 20)]}
    assert screen.shown == b"one\ntw\n(1024.0 KiB were dropped here)\nend\n"
    merged = paths.node_log(0, "node0").read_bytes()
    assert (
        merged
        == b"[rank 0] one\n[rank 0] tw\n[rank 0 \xe2\x80\xa6] (1024.0 KiB were dropped here)\n[rank 0 \xe2\x80\xa6] end\n"
    )


def test_a_gap_lives_through_the_end_of_a_controller(tmp_path: Path) -> None:
    store, paths, _ = make_store(tmp_path)
    store.write("0.out", 0, b"one\n")
    store.drop("0.out", 4, 100)
    # Dead before it was all here: the node tells the same gap again, longer.
    os.truncate(paths.rank_out(0), 4)
    store, paths, screen = make_store(tmp_path)
    assert store.offsets()["0.out"] == 4
    assert store.drop("0.out", 4, 200) == 196
    store.write("0.out", 200, b"end\n")
    assert read_gaps(paths.gaps_jsonl) == {"rank_0000.out": [(4, 200)]}
    assert screen.shown == b"(196 B were dropped here)\nend\n"
    store, paths, _ = make_store(tmp_path)
    assert store.offsets()["0.out"] == 204
    store.close()
    assert b"\0" not in paths.node_log(0, "node0").read_bytes()
    os.truncate(paths.rank_out(0), 200)  # dead right after the gap
    store, paths, _ = make_store(tmp_path)
    store.write("0.out", 200, b"again\n")
    store.close()
    assert (
        paths.node_log(0, "node0")
        .read_bytes()
        .endswith(b"(196 B were dropped here)\n[rank 0 \xe2\x80\xa6] end\n[rank 0 \xe2\x80\xa6] again\n")
    )
    assert sum(end - start for start, end in read_gaps(paths.gaps_jsonl)["rank_0000.out"]) == 196


def test_a_gap_that_begins_in_what_is_here_loses_none_of_it(tmp_path: Path) -> None:
    store, paths, _ = make_store(tmp_path)
    store.write("0.out", 0, b"one\ntwo\n")
    assert store.drop("0.out", 4, 50) == 42
    assert paths.rank_out(0).read_bytes() == b"one\ntwo\n".ljust(50, b"\0")
    assert read_gaps(paths.gaps_jsonl) == {"rank_0000.out": [(8, 50)]}


def test_gaps_of_many_nodes_stand_in_one_file(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    paths.logs.mkdir()

    def tell(number: int) -> None:
        for place in range(20):
            add_gap(paths.gaps_jsonl, f"rank_{number:04d}.out", (place * 10, place * 10 + 1 + number))

    threads = [threading.Thread(target=tell, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: len(gaps) for name, gaps in read_gaps(paths.gaps_jsonl).items()} == {
        f"rank_{number:04d}.out": 20 for number in range(8)
    }


def test_a_torn_line_of_gaps_is_no_gap(tmp_path: Path) -> None:
    path = tmp_path / "gaps.jsonl"
    add_gap(path, "rank_0000.out", (0, 10))
    with path.open("a") as file:
        file.write('{"file": "rank_0000.out", "from": 20, "to": 3')
    add_gap(path, "rank_0000.out", (20, 30))
    assert read_gaps(path) == {"rank_0000.out": [(0, 10), (20, 30)]}
    assert read_gaps(tmp_path / "none") == {}


def test_gaps_that_overlap_are_one() -> None:
    assert join_gaps([(0, 5), (9, 12), (3, 9), (20, 30), (21, 22)]) == [(0, 12), (20, 30)]


def test_what_was_missed_on_a_full_disk_is_fetched_when_it_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, paths, screen = make_store(tmp_path)
    orders: list[Mapping[str, Any]] = []
    catch_up = CatchUp(store, orders.append)
    store.write("0.out", 0, b"one\n")
    assert not catch_up.look(1.0)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        broken.setattr(LogStore, "takes_more", lambda _: False)
        with pytest.raises(OSError, match="No space"):
            store.write("0.out", 4, b"two\n")
        assert store.missed() == {"0.out": 4}
        assert not any(catch_up.look(moment) for moment in (2.0, 4.0, 8.0))
    assert not catch_up.look(8.5), "not before the pause is over"
    assert catch_up.look(20.0)
    assert orders == [{"op": "offsets", "offsets": {"0.out": 4}}]
    store.write("0.out", 8, b"three\n")  # was on its way
    store.write("0.out", 4, b"two\nthree\n")
    assert not store.behind
    assert not catch_up.look(100.0)
    assert paths.rank_out(0).read_bytes() == screen.shown == b"one\ntwo\nthree\n"
    assert not list(paths.logs.glob(".space*"))


def test_bytes_come_with_their_time(tmp_path: Path) -> None:
    now = [100.0]
    writer = TimeWriter(lambda: now[0])
    path = tmp_path / "times" / "rank_0000.out"
    for now[0], offset in ((100.0, 0), (100.9, 10), (101.5, 20), (200.25, 30), (150.0, 40), (150.5, 50), (151.0, 60)):
        writer.note(path, offset)
    assert path.read_text() == "100.000 0\n101.500 20\n200.250 30\n150.000 40\n151.000 60\n"
    assert [find_since(path, moment) for moment in (0, 101.1, 101.2, 150, 201.3)] == [0, 20, 20, 30, None]


def test_times_of_a_long_log_are_found_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rank_0000.out"
    marks = [(1_000_000.0 + second * 1.5, second * 977) for second in range(20_000)]
    path.write_text("".join(f"{at:.3f} {offset}\n" for at, offset in marks) + "1100000.0 99")
    assert list(read_marks(path)) == marks
    for moment in (0.0, 1_000_000.0, 1_000_001.2, 1_000_999.0, 1_012_345.6, marks[-1][0], marks[-1][0] + 1.5):
        wanted = next((offset for at, offset in marks if at + 1.0 > moment), None)
        assert find_since(path, moment) == wanted
    path.write_text("")
    assert find_since(path, 0.0) is None
    path.write_text("5.0 0")
    assert find_since(path, 0.0) is None


def test_a_torn_line_of_times_costs_one_entry(tmp_path: Path) -> None:
    path = tmp_path / "rank_0000.out"
    path.write_text("100.000 1000\n150.000 20")
    assert list(read_marks(path)) == [(100.0, 1000)]
    TimeWriter(lambda: 200.0).note(path, 3000)
    assert list(read_marks(path)) == [(100.0, 1000), (200.0, 3000)]
    path.write_text("nonsense\n1 2 3\n\n300.0 x\n400.0 7\n")
    assert list(read_marks(path)) == [(400.0, 7)]
    assert list(read_marks(tmp_path / "none")) == []


def test_the_next_store_goes_on_in_the_middle_of_a_line(tmp_path: Path) -> None:
    paths, node = ExperimentPaths(tmp_path), build_plan(1).nodes[0]
    whole = b"one\ntwo and three\nfour"
    for cut in range(1, len(whole)):
        for path in tmp_path.rglob("*.*"):
            path.unlink() if path.is_file() else None
        first = LogStore(node, paths, lambda *_: None)
        first.write("0.out", 0, whole[:cut])
        first.close(over=False)  # as after kill -9: nothing is flushed
        second = LogStore(node, paths, lambda *_: None)
        second.write("0.out", second.offsets()["0.out"], whole[cut:])
        second.close()
        assert paths.rank_out(0).read_bytes() == whole
        merged = paths.node_log(0, node.node.name).read_text()
        assert merged == "[rank 0] one\n[rank 0] two and three\n[rank 0] four\n", cut


def test_gaps_that_are_known_are_cut_out() -> None:
    assert cut_gaps([(0, 10), (20, 30)], []) == [(0, 10), (20, 30)]
    assert cut_gaps([(0, 10), (20, 30)], [(0, 10)]) == [(20, 30)]
    assert cut_gaps([(0, 10), (20, 30)], [(2, 4), (4, 5), (25, 30)]) == [(0, 2), (5, 10), (20, 25)]
