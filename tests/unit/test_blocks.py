"""Whole lines of a block: found too long, and marked, without looking at each."""

from __future__ import annotations

import random

from orchestrator.output.blocks import has_longer_line, prefix_lines


def test_a_longer_line_is_found_wherever_it_stands() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        lines = [b"x" * chance.randrange(9) for _ in range(chance.randrange(1, 9))]
        for limit in range(9):
            assert has_longer_line(b"\n".join(lines), limit) == (max(map(len, lines)) > limit)


def test_every_line_gets_the_prefix() -> None:
    assert prefix_lines(b"a\n\nb", b"[0] ") == b"[0] a\n[0] \n[0] b\n"
    assert prefix_lines(b"", b"[0] ") == b"[0] \n"
