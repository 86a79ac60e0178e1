"""The command line of scripts/gpu_proof."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .collectives import measure_collectives
from .faults import FAULTS, measure_faults
from .machine import read_machine, read_versions
from .nodes import Bed
from .results import ProofError, Results, Row, read_results, write_results
from .training import SEQUENCES, keep_pairs, list_cases, measure_training, write_configs

PARTS = ("training", "collectives", "faults")
HELP = {
    "training": "the GPT with DDP, full_shard and hybrid_shard, compiled and not, against torchrun by hand",
    "collectives": "check --level 1 against an all-reduce by hand",
    "faults": "memory that runs out, a hang, a rank that is killed, a wrong interface, a busy GPU",
}


def read_words(words: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    about = "\n".join(f"  {name:12} {text}" for name, text in HELP.items())
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_proof",
        description="Measures what aorta-launch is on nodes with GPUs, and makes docs/gpu-results.md of it.",
        epilog=f"parts:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="all when none is named")
    parser.add_argument("--nodes", type=Path, help="a node list, as scripts/gpu_cluster makes one")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="where the figures go (gpu-results)")
    parser.add_argument("--pairs", type=int, default=3, help="how often each tool runs (3)")
    parser.add_argument("--steps", type=int, default=40, help="steps of each training (40)")
    parser.add_argument("--warm-up", type=int, default=10, help="first steps that do not count (10)")
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help=f"sequences on each rank ({SEQUENCES})")
    parser.add_argument("--only", help="cases of the parts, with commas between")
    parser.add_argument("--add", action="store_true", help="go on with the files that are there, of the same nodes")
    parser.add_argument("--work", type=Path, help="where the runs are made and kept, to be looked at")
    parser.add_argument(
        "--page", action="store_true", help="measure nothing; make docs/gpu-results.md from its figures"
    )
    args = parser.parse_args(words)
    if not args.page and args.nodes is None:
        parser.error("--nodes names the node list; scripts/gpu_cluster 2 makes one")
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    return args


def main(words: list[str] | None = None) -> int:
    """Measure and write the figures, or write the page."""
    given = sys.argv[1:] if words is None else words
    args = read_words(given)
    if args.page:
        from .page import write_page  # noqa: PLC0415 - a page needs no node

        write_page()
        return 0
    bed = Bed(args.nodes, args.work)
    try:
        for part in args.parts or PARTS:
            measure_part(bed, part, args, given)
    except ProofError as error:
        print(f"gpu_proof: {error}", file=sys.stderr)
        return 1
    finally:
        bed.close()
    return 0


def measure_part(bed: Bed, part: str, args: argparse.Namespace, given: list[str]) -> None:
    """Measure one part; the file holds what was found so far, also when something fails later."""
    machine, versions = read_machine(bed), read_versions(bed)
    command = shlex.join(["scripts/gpu_proof", *given])
    before = find_before(args.out / f"{part}.json", machine, versions) if args.add else None
    rows: list[Row] = list(before.rows) if before else []
    if part == "training":
        rows = keep_pairs(rows)
    for row in choose(bed, part, args, tuple(rows), small=not machine["gpus"]):
        rows.append(row)
        print(
            f"{time.strftime('%H:%M:%S')} {part}: { {key: value for key, value in row.items() if key != 'steps'} }",
            flush=True,
        )
        results = Results(
            part=part,
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commands=(*(before.commands if before else ()), command),
            machine=machine,
            versions=versions,
            rows=tuple(rows),
        )
        write_results(results, args.out)


def find_before(path: Path, machine: dict[str, Any], versions: dict[str, str]) -> Results | None:
    """What an earlier call measured, on the same machine with the same versions."""
    if not path.exists():
        return None
    before = read_results(path)
    if (before.machine, before.versions) != (machine, versions):
        raise ProofError(f"{path} is of another machine or of other versions: take another --out, or leave out --add")
    return before


def choose(bed: Bed, part: str, args: argparse.Namespace, begun: Sequence[Row], *, small: bool) -> Iterable[Row]:
    """Begin a part."""
    only = args.only.split(",") if args.only else None
    if part == "collectives":
        return measure_collectives(bed, pairs=args.pairs)
    if part == "faults":
        return measure_faults(bed, [name for name in FAULTS if only is None or name in only])
    write_configs(bed, steps=args.steps, sequences=args.sequences, small=small)
    wanted = [case.label for case in list_cases() if only is None or case.label in only]
    return measure_training(bed, wanted, begun, pairs=args.pairs, warm_up=args.warm_up)
