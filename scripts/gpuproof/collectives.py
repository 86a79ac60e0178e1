"""check --level 1 against an all-reduce started by hand: time and bus bandwidth of each size."""

from __future__ import annotations

import json
from collections.abc import Iterable

from .nodes import Bed
from .results import ProofError, Row

OURS, BY_HAND = "check --level 1", "all_reduce by hand"


def measure_collectives(bed: Bed, *, pairs: int) -> Iterable[Row]:
    """Measure in pairs of alternating order; a row for each size each time."""
    bed.push()
    sizes: list[int] = []
    for pair in range(1, pairs + 1):
        # The sizes are those of the check, so the first pair begins with it.
        for tool in (OURS, BY_HAND) if pair % 2 else (BY_HAND, OURS):
            found, size, transport = check_once(bed) if tool == OURS else (by_hand(bed, sizes), 0, "")
            sizes = sizes or [number for number, _ in found]
            ranks = size or sum(bed.processes(node) for node in bed.nodes)
            for number, seconds in found:
                yield build_row(tool, pair, number, seconds, ranks=ranks, transport=transport)


def build_row(tool: str, pair: int, size: int, seconds: float, *, ranks: int, transport: str) -> Row:
    """Time and bandwidth; the bus carries each byte 2 (n-1)/n times."""
    busbw = size / seconds / 1e9 * 2 * (ranks - 1) / ranks
    row: Row = {"case": "all_reduce", "tool": tool, "pair": pair, "bytes": size}
    row |= {"us": round(seconds * 1e6, 1), "busbw_gb_s": round(busbw, 3)}
    return row | ({"transport": transport} if transport else {})


def check_once(bed: Bed) -> tuple[list[tuple[int, float]], int, str]:
    """One check of level 1: bytes and seconds, how many ranks, which network NCCL took."""
    done = bed.orchestrate(["check", "--level", "1", "--json"])
    document = json.loads(done.stdout)
    collectives = document.get("survey", {}).get("collectives") or {}
    world = collectives.get("world")
    if not world or not world["rows"]:
        raise ProofError(f"check --level 1 measured nothing, exit code {done.returncode}:\n{done.stderr[-3000:]}")
    rows = [(row["bytes"], row["seconds"]) for row in world["rows"]]
    return rows, world["size"], ", ".join(sorted({name for _, name in collectives["transports"]}))


def by_hand(bed: Bed, sizes: list[int]) -> list[tuple[int, float]]:
    """The same sizes with torch alone, by ssh and torchrun."""
    text, _ = bed.torchrun(["raw_all_reduce.py", *map(str, sizes)])
    line = next(line for line in text.splitlines() if line.startswith("[["))
    return [(int(size), float(seconds)) for size, seconds in json.loads(line)]
