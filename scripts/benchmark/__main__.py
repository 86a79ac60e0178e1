"""scripts/bench: aorta-launch measured side by side with what people use instead."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from . import PROJECT
from .bench import Bench, Part
from .judge import judge_all
from .nodes import LAUNCHER_NAME
from .parts import list_words, read_part
from .results import Results, write_results
from .table import render_musts, render_part
from .timing import BenchError
from .tools import read_machine, read_versions


def main(words: list[str] | None = None) -> int:
    """Measure, write the figures, print the tables."""
    given = sys.argv[1:] if words is None else words
    args = read_words(given)
    if args.page:
        from .page import write_page  # noqa: PLC0415 - a page needs no node

        write_page()
        return 0
    begin = time.monotonic()
    # Nodes go away and folders with them, however this ends.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if args.launcher:
        os.environ[LAUNCHER_NAME] = str(args.launcher.absolute())
    try:
        parts = [read_part(word) for word in args.parts or list_words()]
        results = measure_parts(parts, args, shlex.join(["scripts/bench", *given]))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print_results(results, parts)
    print(f"{args.out}: every figure; {time.monotonic() - begin:.0f} s in all")
    return 0


def measure_parts(parts: Sequence[Part], args: argparse.Namespace, command: str) -> Results:
    """Measure every part at every size; the file holds what was found so far, also when a later one fails."""
    bench = Bench(runs=args.runs)
    results = Results(
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=command,
        machine=read_machine(),
        versions=read_versions(),
        series=(),
    )
    for part in parts:
        for size in args.nodes or part.sizes:
            part.measure(bench, size)
            results = replace(results, series=tuple(bench.series))
            write_results(results, args.out)
    return results


def read_words(words: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(list_words())}; all when none is named")
    parser.add_argument("--nodes", type=read_sizes, metavar="N,N", help="numbers of nodes; each part has its own")
    parser.add_argument("--runs", type=int, default=5, metavar="R", help="rounds that count (5)")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), metavar="FILE", help="results (bench.json)")
    parser.add_argument(
        "--launcher", type=Path, metavar="FILE", help="another aorta-launch to measure, as of an older state"
    )
    parser.add_argument(
        "--page", action="store_true", help="measure nothing; make docs/performance.md from docs/performance/*.json"
    )
    return parser.parse_args(words)


def read_sizes(text: str) -> list[int]:
    """Parse numbers with commas between."""
    return [int(word) for word in text.split(",")]


def print_results(results: Results, parts: Sequence[Part]) -> None:
    """Print what had to be reached, then everything."""
    for part in parts:
        print(f"\n## {part.title}\n")
        if part.musts:
            print(render_musts(judge_all(results, part.word, part.musts)) + "\n")
        print(render_part(results, part.word))


if __name__ == "__main__":
    assert PROJECT
    sys.exit(main())
