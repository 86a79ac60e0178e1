"""What ranks on GPUs said of a collective that ran out of time."""

from __future__ import annotations

from pathlib import Path

from runs import Story


def test_a_collective_that_its_own_watchdog_cancelled_is_not_what_broke() -> None:
    data = Path(__file__).parents[1] / "data" / "watchdog"
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(0, code=None, signal=6)
    verdict = story.verdict(err={rank: (data / f"rank_{rank}.err").read_text() for rank in (0, 1)})
    first = verdict.first_failure
    assert first is not None
    assert (verdict.family, verdict.rule, first.rank, first.node) == ("HANG", "watchdog", 1, "node1")
    assert verdict.cause == "rank 1 never came to collective 4"
