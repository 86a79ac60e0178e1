from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.output.events import EventLog
from orchestrator.output.node_log import PIECE_BYTES, NodeLogWriter
from orchestrator.output.screen import CUT_NOTE, HELD_BYTES, LINE_CHARS, LogScreen, parse_ranks

# ---------------------------------------------------------------- the screen


def make_screen(**changed: Any) -> tuple[LogScreen, io.BytesIO]:
    out = io.BytesIO()
    values: dict[str, Any] = {"ranks": None, "world_size": 4}
    return LogScreen(out, **(values | changed)), out


def show(*chunks: bytes, **changed: Any) -> str:
    screen, out = make_screen(**changed)
    for chunk in chunks:
        screen.feed(0, 1, "out", chunk)
    screen.flush()
    return out.getvalue().decode()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[first:last] for first, last in pairwise(ends)]


def test_lines_are_shown_whole_and_named_by_node_and_rank() -> None:
    screen, out = make_screen(world_size=16)
    screen.feed(0, 1, "out", b"one\ntw")
    screen.feed(1, 13, "err", b"other\n")
    screen.feed(0, 1, "out", b"o\nthree")
    screen.flush()
    assert out.getvalue() == b"[0: 1] one\n[1:13] other\n[0: 1] two\n[0: 1] three\n"


def test_stdout_and_stderr_of_a_rank_do_not_mix_within_a_line() -> None:
    screen, out = make_screen()
    screen.feed(0, 1, "out", b"from ")
    screen.feed(0, 1, "err", b"warning\n")
    screen.feed(0, 1, "out", b"out\n")
    assert out.getvalue() == b"[0:1] warning\n[0:1] from out\n"


def test_only_the_chosen_ranks_are_shown() -> None:
    screen, out = make_screen(ranks=frozenset({2}))
    for rank in range(4):
        screen.feed(0, rank, "out", b"%d\n" % rank)
    screen.feed(0, None, "err", b"torchrun says\n")
    assert out.getvalue() == b"[0:2] 2\n"
    screen, out = make_screen(ranks=frozenset(), agents=True)
    screen.feed(0, None, "err", b"torchrun says\n")
    assert out.getvalue() == b"[0:agent] torchrun says\n"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("50%\r99%\r100%\n", "100%"),
        ("text\r\n", "text"),
        ("\r10%\r20%", "20%"),
        ("a\x1b[2Kb\x1b]0;title\x07c\x07\x00d\n", "abcd"),
        ("\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m"),
        ("\x1b[31mred\n", "\x1b[31mred\x1b[0m"),
        ("tab\tstays\n", "tab\tstays"),
        ("žluť 🎉\n", "žluť 🎉"),
        ("x" * LINE_CHARS + "\n", "x" * LINE_CHARS),
        ("x" * (LINE_CHARS + 1) + "\n", "x" * LINE_CHARS + CUT_NOTE),
        ("", None),
        ("\n", ""),
    ],
)
def test_what_a_rank_writes_is_made_fit_for_a_pipe(raw: str, shown: str | None) -> None:
    assert show(raw.encode()) == ("" if shown is None else f"[0:1] {shown}\n")


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert show(b"a\xff\xfeb\n") == "[0:1] a��b\n"


PIECES = st.sampled_from(
    [b"a", b"line", b"\n", b"\r", b"\r\n", "ž🎉".encode(), b"\xff", b"\x1b[31m", b"\x1b[2K", b"\x00", b"y" * 3000]
)
CUTS = st.lists(st.integers(0, 100_000), max_size=12)


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(PIECES, max_size=12), places=CUTS)
@example(pieces=[b"x" * (HELD_BYTES + 5), b"\r", b"short\n"], places=[HELD_BYTES + 3, HELD_BYTES + 5, HELD_BYTES + 6])
@example(pieces=[b"x" * (HELD_BYTES + 5), b"\r", b"\n"], places=[HELD_BYTES + 3, HELD_BYTES + 5, HELD_BYTES + 6])
@example(pieces=["é".encode(), b"\r", b"\n"], places=[1, 2, 3])
def test_the_screen_shows_the_same_however_the_bytes_were_cut(pieces: list[bytes], places: list[int]) -> None:
    data = b"".join(pieces)
    assert show(*cut(data, places)) == show(data)


def test_a_line_that_never_ends_is_held_in_bounded_memory() -> None:
    screen, _ = make_screen()
    for _ in range(100):
        screen.feed(0, 1, "out", b"x" * 10_000)
    assert sum(len(source.held) for source in screen._sources.values()) <= HELD_BYTES + 2
    for step in range(10_000):
        screen.feed(0, 2, "err", b"\r%d%%" % step)
    assert len(screen._sources[0, 2, "err"].held) < 10


def test_progress_is_redrawn_on_a_terminal_at_most_four_times_a_second() -> None:
    now = [0.0]
    screen, out = make_screen(terminal=True, clock=lambda: now[0])
    for step in range(101):
        now[0] = step / 100
        screen.feed(0, 1, "err", b"\r%d%%" % step)
    states = re.findall(rb"\r\x1b\[2K\[0:1\] (\d+)%", out.getvalue())
    assert states == [b"0", b"25", b"50", b"75", b"100"]
    screen.feed(0, 2, "out", b"line\n")
    assert out.getvalue().endswith(b"100%\r\x1b[2K[0:2] line\n")
    screen.feed(0, 1, "err", b"\n")
    assert out.getvalue().endswith(b"\n[0:1] 100%\n")


def test_a_drawn_state_fits_the_terminals_width() -> None:
    screen, out = make_screen(terminal=True, width=20)
    screen.feed(0, 1, "err", b"\r" + b"#" * 100)
    assert len(out.getvalue().removeprefix(b"\r\x1b[2K")) == 19


def test_ranks_have_colours_only_when_asked_for() -> None:
    assert "\x1b" not in show(b"a\n")
    assert re.fullmatch("\x1b\\[\\d+m\\[0:1\\]\x1b\\[0m a\n", show(b"a\n", color=True))


def test_a_reader_who_left_does_not_end_the_run() -> None:
    program = (
        "import sys\n"
        "from orchestrator.output.screen import LogScreen\n"
        "screen = LogScreen(sys.stdout.buffer, ranks=None, world_size=1)\n"
        "for number in range(100_000):\n"
        "    screen.feed(0, 0, 'out', b'%d\\n' % number)\n"
        "assert screen.closed\n"
        "sys.exit(42)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == b"[0:0] 0\n"
        run.stdout.close()
        assert run.stderr.read() == b""
        assert run.wait(20) == 42


def test_the_screen_keeps_up() -> None:
    block = b"".join(b"step %d loss 3.14159 lr 0.0003\n" % step for step in range(2000))
    screen, _ = make_screen(ranks=frozenset({0}))
    start = time.process_time()
    for _ in range(10):
        screen.feed(0, 0, "out", block)
    shown_s = time.process_time() - start
    start = time.process_time()
    for _ in range(10_000):
        screen.feed(0, 1, "out", block)
    hidden_s = time.process_time() - start
    print(f"screen: {20_000 / shown_s:,.0f} lines/s shown, {10_000 / hidden_s:,.0f} blocks/s hidden")
    assert shown_s < 20_000 / 200_000
    assert hidden_s < 0.5


def test_ranks_to_show_are_parsed() -> None:
    assert parse_ranks("0", 4) == frozenset({0})
    assert parse_ranks("all", 4) is None
    assert parse_ranks("0,2-3", 4) == frozenset({0, 2, 3})
    for wrong in ("", "4", "0-4", "3-1", "a", "-1", "0,,1"):
        with pytest.raises(ConfigError, match="rank"):
            parse_ranks(wrong, 4)


# ---------------------------------------------------------------- the log of a node


def test_a_nodes_log_merges_whole_lines(tmp_path: Path) -> None:
    log = NodeLogWriter(tmp_path / "logs" / "node_0_a.txt")
    log.feed("rank 3", b"one\ntw")
    log.feed("agent", b"agent\n")
    log.feed("rank 3", b"warning\n", "err")
    log.feed("rank 3", b"o\n50%\r100%\r\n\xff\x00")
    log.close()
    log.close()
    assert (tmp_path / "logs" / "node_0_a.txt").read_bytes() == (
        b"[rank 3] one\n[agent] agent\n[rank 3] warning\n[rank 3] two\n[rank 3] 50%\r100%\r\n[rank 3] \xff\x00\n"
    )


def read_back(text: bytes) -> bytes:
    """Undo the labels and the pieces."""
    lines = text.split(b"\n")[:-1]
    joined = b"".join((b"" if b"\xe2\x80\xa6] " in line[:14] else b"\n") + line.partition(b"] ")[2] for line in lines)
    return joined[1:]


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(PIECES | st.sampled_from([b"z" * PIECE_BYTES, b"z" * (PIECE_BYTES - 1)]), max_size=8), places=CUTS
)
@example(pieces=[b"z" * (2 * PIECE_BYTES), b"\n", b"z" * PIECE_BYTES, b"\n"], places=[7, 2 * PIECE_BYTES])
def test_a_nodes_log_keeps_every_byte_however_they_were_cut(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], places: list[int]
) -> None:
    data = b"".join(pieces)
    folder = tmp_path_factory.mktemp("log")
    texts = []
    for name, chunks in (("whole", [data]), ("cut", cut(data, places))):
        log = NodeLogWriter(folder / name)
        for chunk in chunks:
            log.feed("rank 3", chunk)
        log.close()
        texts.append((folder / name).read_bytes())
    assert texts[0] == texts[1]
    assert read_back(texts[0]) == data.removesuffix(b"\n")
    assert max(map(len, texts[0].split(b"\n"))) <= PIECE_BYTES + 20


def test_a_nodes_log_holds_no_more_than_a_piece_of_an_endless_line(tmp_path: Path) -> None:
    log = NodeLogWriter(tmp_path / "log")
    for _ in range(30):
        log.feed("rank 0", b"x" * 50_000)
        assert sum(len(source.held) for source in log._sources.values()) <= PIECE_BYTES
    log.close()


# ---------------------------------------------------------------- events


def test_events_are_lines_of_json_in_utc_and_mirrored(tmp_path: Path) -> None:
    mirror = io.StringIO()
    moment = datetime(2026, 11, 27, 23, 20, 41, 123456, tzinfo=UTC).astimezone()
    log = EventLog(tmp_path / "run" / "events.jsonl", mirror, lambda: moment)
    log.record("rank exit", rank=3, where=Path("/x"), text="line\nž\udc80")
    log.record("verdict", state="failed")
    log.close()
    text = (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8")
    assert text == mirror.getvalue()
    events = [json.loads(line) for line in text.splitlines()]
    assert events[0]["time"] == "2026-11-27T23:20:41.123Z"
    assert events[0]["text"] == "line\nž\udc80"
    assert [event["kind"] for event in events] == ["rank exit", "verdict"]


def test_events_are_readable_while_the_run_goes_on_and_outlive_their_reader(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as mirror:
        log = EventLog(tmp_path / "events.jsonl", mirror, lambda: datetime.now(UTC))
        log.record("start")
        log.record("end")
        assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2
        log.close()
