"""A node that dies is lost, whichever is noticed first: its silence, or the ranks that spoke with it."""

from __future__ import annotations

from runs import Story

PEER = """Traceback (most recent call last):
  File "/w/train.py", line 90, in step
    dist.all_reduce(t)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:37044: Connection reset by peer
"""


def test_ranks_that_break_before_the_silence_is_long_enough_do_not_hide_a_lost_node() -> None:
    story = Story(1, 1)
    story.all_run()
    story.tell("suspect", 1, at=5.0, why="the connection broke")
    story.rank_ends(0, at=6.0, code=1)
    story.node_ends(0, at=7.0, code=1, state="stopped", after_stop=True)
    story.tell("lost", 1, at=20.0, why="no answer within 3 s")
    verdict = story.verdict(err={0: PEER})
    assert (verdict.state, verdict.exit_code, verdict.family) == ("lost", 4, "NODE_LOST")
    assert verdict.first_failure is not None
    assert verdict.first_failure.node_rank == 1


def test_a_failure_of_a_ranks_own_stays_one_though_a_node_is_lost_after_it() -> None:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(0, at=6.0, code=1)
    story.node_ends(0, at=7.0, code=1, state="stopped", after_stop=True)
    story.tell("lost", 1, at=20.0, why="no answer within 3 s")
    verdict = story.verdict(err={0: "Traceback (most recent call last):\nValueError: no tokens\n"})
    assert (verdict.state, verdict.exit_code) == ("failed", 1)
