from __future__ import annotations

import io
import os
import threading
import time
from pathlib import Path

from orchestrator.output.printer import PATIENCE_S, WAITING, Printer
from orchestrator.output.screen import LogScreen


def test_what_was_handed_over_is_printed_at_the_end() -> None:
    out = io.BytesIO()
    printer = Printer(LogScreen(out, ranks=None, world_size=2))
    printer.show(0, 0, "out", b"one\ntw")
    printer.show(1, 1, "out", b"other\n")
    printer.show(0, 0, "out", b"o\nno newline")
    printer.close()
    assert sorted(out.getvalue().splitlines()) == [b"[0:0] no newline", b"[0:0] one", b"[0:0] two", b"[1:1] other"]
    assert printer.left_out == 0


def test_a_stuck_screen_holds_nobody_up_and_is_told() -> None:
    read, write = os.pipe()
    printer = Printer(LogScreen(os.fdopen(write, "wb", buffering=0), ranks=None, world_size=1))
    line = b"x" * 65_000 + b"\n"
    start = time.monotonic()
    for _ in range(WAITING + 50):
        printer.show(0, 0, "out", line)
    took_s = time.monotonic() - start
    assert took_s < 3 * PATIENCE_S, "each piece waited for the screen"
    assert printer.left_out > 0
    drain = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(read, 1 << 20), b"")], daemon=True)
    drain.start()
    printer.close()


def test_ranks_that_are_not_shown_cost_nothing() -> None:
    out = io.BytesIO()
    printer = Printer(LogScreen(out, ranks=frozenset({0}), world_size=2))
    for _ in range(WAITING * 4):
        printer.show(0, 1, "out", b"unseen\n")
    printer.close()
    assert out.getvalue() == b""


def test_a_full_disk_behind_stdout_ends_the_printing_and_nothing_else() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        screen = LogScreen(full, ranks=None, world_size=1)
        printer = Printer(screen)
        printer.show(0, 0, "out", b"one\n")
        printer.close()
    assert screen.closed
