from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from runs import build_plan

from orchestrator.log_actions import print_lines
from orchestrator.output.pipes import wait_read
from orchestrator.output.plan_text import plan_document
from orchestrator.output.screen import LogScreen
from orchestrator.phases.loggaps import add_gap
from orchestrator.phases.logstore import LogStore
from orchestrator.phases.logview import (
    Dropped,
    LogFile,
    LogTail,
    Piece,
    choose_files,
    find_begin,
    follow,
    list_files,
    open_tails,
    read_in_order,
)
from orchestrator.plan.paths import ExperimentPaths


def make_files(tmp_path: Path, *processes: int) -> list[LogFile]:
    paths = ExperimentPaths(tmp_path)
    (paths.logs / "times").mkdir(parents=True)
    return list_files(plan_document(build_plan(*processes)), paths)


def named(files: Sequence[LogFile]) -> list[str]:
    return [file.path.name for file in files]


def show(pieces: Iterator[tuple[LogFile, Piece]]) -> str:
    out = io.BytesIO()
    print_lines(pieces, LogScreen(out, ranks=None, agents=True, world_size=4))
    return out.getvalue().decode()


def fill(file: LogFile, *parts: tuple[float, bytes]) -> None:
    """Write a log file with the moments at which its parts came."""
    offset = 0
    with file.path.open("ab") as log, file.times.open("a") as times:
        for moment, data in parts:
            times.write(f"{moment:.3f} {offset}\n")
            log.write(data)
            offset += len(data)


def test_ranks_nodes_and_streams_are_chosen(tmp_path: Path) -> None:
    files = make_files(tmp_path, 2, 1)
    assert named(files)[:4] == ["agent_0.out", "agent_0.err", "rank_0000.out", "rank_0000.err"]
    assert named(choose_files(files, frozenset({0, 2}), None, "out")) == ["rank_0000.out", "rank_0002.out"]
    assert named(choose_files(files, None, None, "err")) == ["rank_0000.err", "rank_0001.err", "rank_0002.err"]
    on_node = choose_files(files, None, frozenset({1}), "both")
    assert named(on_node) == ["agent_1.out", "agent_1.err", "rank_0002.out", "rank_0002.err"]
    assert named(choose_files(files, frozenset({1}), frozenset({0}), "out")) == ["agent_0.out", "rank_0001.out"]


def test_lines_of_several_ranks_stand_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    files = choose_files(make_files(tmp_path, 1, 1), None, None, "out")
    fill(files[0], (10.0, b"a1\na2 be"), (12.0, b"gun earlier\n"), (15.0, b"a3\n"))
    fill(files[1], (11.0, b"b1\n"), (13.0, b"b2\n"), (16.0, b"no end"))
    wanted = ["[0:0] a1", "[1:1] b1", "[0:0] a2 begun earlier", "[1:1] b2", "[0:0] a3", "[1:1] no end"]
    assert show(read_in_order(open_tails(files, None))).splitlines() == wanted
    # Without an index nothing is lost.
    files[1].times.unlink()
    assert sorted(show(read_in_order(open_tails(files, None))).splitlines()) == sorted(wanted)


def test_since_begins_with_the_line_that_was_in_hand(tmp_path: Path) -> None:
    (file, other) = choose_files(make_files(tmp_path, 1, 1), None, None, "out")
    fill(file, (10.0, b"one\ntw"), (100.0, b"o\nthree\n"))
    assert find_begin(file, 5.0) == 0
    assert find_begin(file, 50.0) == 4
    assert find_begin(file, 100.9) == 4
    assert find_begin(file, 101.1) == len(b"one\ntwo\nthree\n")
    assert show(read_in_order(open_tails([file], 50.0))) == "[0:0] two\n[0:0] three\n"
    # Of a log without an index the file's own time says whether anything may be meant.
    other.path.write_bytes(b"old\n")
    os.utime(other.path, (10, 10))
    assert find_begin(other, 5.0) == 0
    assert find_begin(other, 50.0) == 4
    assert find_begin(LogFile(**{**vars(other), "path": tmp_path / "none"}), 1.0) == 0


def test_a_gap_is_one_told_line_and_no_zeros(tmp_path: Path) -> None:
    (file,) = choose_files(make_files(tmp_path, 1), None, None, "out")
    file.path.write_bytes(b"one\ntw" + bytes(100) + b"end\n\0\0zeros of its own\n")
    add_gap(file.gaps, file.path.name, (6, 106))
    pieces = list(LogTail(file).pieces())
    assert pieces == [b"one\ntw", Dropped(size=100, in_line=True), b"end\n\0\0zeros of its own\n"]
    shown = show(read_in_order(open_tails([file], None)))
    assert shown.splitlines() == ["[0:0] one", "[0:0] tw", "[0:0] (100 B were dropped here)", "[0:0] end", "[0:0] zeros of its own"]  # fmt: skip


def test_a_gap_that_comes_while_reading_is_seen(tmp_path: Path) -> None:
    store = LogStore(build_plan(1).nodes[0], ExperimentPaths(tmp_path), lambda *_: None)
    (file,) = choose_files(list_files(plan_document(build_plan(1)), ExperimentPaths(tmp_path)), None, None, "out")
    tail = LogTail(file)
    assert list(tail.pieces()) == []
    store.write("0.out", 0, b"one\n")
    assert list(tail.pieces()) == [b"one\n"]
    store.drop("0.out", 4, 1000)
    store.write("0.out", 1000, b"two\n")
    assert list(tail.pieces()) == [Dropped(size=996, in_line=False), b"two\n"]


def test_a_run_that_was_started_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    (file,) = choose_files(make_files(tmp_path, 1), None, None, "out")
    file.path.write_bytes(b"of the first attempt\n")
    tail = LogTail(file)
    assert list(tail.pieces()) == [b"of the first attempt\n"]
    file.path.write_bytes(b"second\n")
    assert list(tail.pieces()) == [b"second\n"]


def test_following_shows_the_last_bytes_and_ends_with_the_run(tmp_path: Path) -> None:
    (file,) = choose_files(make_files(tmp_path, 1), None, None, "out")
    story: list[bytes] = [b"one\n", b"", b"two\n", b"last"]
    over = False

    def wait() -> bool:
        nonlocal over
        with file.path.open("ab") as log:
            log.write(story.pop(0))
        over = not story
        return True

    assert show(follow([LogTail(file)], lambda: over, wait)) == "[0:0] one\n[0:0] two\n[0:0] last\n"


def test_following_ends_when_nobody_reads(tmp_path: Path) -> None:
    files = make_files(tmp_path, 1)
    assert list(follow([LogTail(file) for file in files], lambda: False, lambda: False)) == []
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as out:
        assert wait_read(out, 0.0)
        closer = threading.Timer(0.1, os.close, [reading])
        closer.start()
        assert not wait_read(out, 60.0)
        closer.join()
    assert wait_read(io.BytesIO(), 0.0)
