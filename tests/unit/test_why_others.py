"""Logs made after the rungs of the ladder had been written, with another script, and judged once.

18 of the 20 were right at the first try. `sleep` (a rank that wakes up and finds nobody) and `term` (told to end by a
stranger) stayed undecided; rungs for them were added then, so that these two are tuned on, and the other 18 are not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.diagnosis.ladder.judge import judge
from orchestrator.diagnosis.logs.verdict import build_foreign_verdict
from orchestrator.phases.foreign.read import read_jobs

OTHERS = Path(__file__).parent.parent / "data" / "others"


@pytest.mark.parametrize(
    ("name", "family", "rank", "node"),
    [
        ("key", "CODE", 3, "host1"),
        ("kill3", "KILLED", 1, "host1"),
        ("bus", "SHM", 2, "host1"),
        ("exit7", "CODE", 2, "host1"),
        ("exit0", "EARLY_EXIT", 1, "host0"),
        ("sleep", "HANG", 1, "host1"),
        ("detail", "MISMATCH", 2, "host1"),
        ("order", "MISMATCH", 2, "host1"),
        ("shape", "MISMATCH", 3, "host1"),
        ("barrier", "HANG", 3, "host1"),
        ("loader", "DATA", 1, "host1"),
        ("print1", "UNKNOWN", 1, "host1"),
        ("nan", "CODE", 0, "host0"),
        ("disk", "DISK", 2, "host1"),
        ("import", "ENV", 2, "host1"),
        ("allraise", "CODE", 0, "host0"),
        ("oomtext", "OOM_GPU", 1, "host1"),
        ("term", "KILLED", 1, "host1"),
        ("good", "OK", None, None),
        ("warn", "OK", None, None),
    ],
)
def test_each_of_the_others(name: str, family: str, rank: int | None, node: str | None) -> None:
    (job,) = read_jobs(OTHERS / name)
    verdict = build_foreign_verdict(job.case, judge(job.case), job.logs)
    first = verdict.first_failure
    assert verdict.family == family, verdict
    assert ((first.rank, first.node) if first else (None, None)) == (rank, node)


def test_what_nobody_knows_is_shown_in_the_ranks_own_words() -> None:
    (job,) = read_jobs(OTHERS / "print1")
    verdict = build_foreign_verdict(job.case, judge(job.case), job.logs)
    assert verdict.confidence == "unknown"
    assert "fatal: shard 7 is empty, giving up" in verdict.last_lines
