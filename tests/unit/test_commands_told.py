"""A run whose agents are commands: what is decided, and judged, where no rank can be seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runs import START, Story

from orchestrator.diagnosis.decider import Decider


def tell_of(*processes: int) -> Story:
    story = Story(*processes)
    story.plan = replace(story.plan, agent="command")
    story.decider = Decider(story.plan, started=START, join_limit_s=180.0)
    return story


def start(story: Story) -> list[str]:
    said = []
    for node in story.plan.nodes:
        told: dict[str, Any] = {"pid": 7, "ticks": 1, "stands_for": node.first_rank}
        said += [order.say for order in story.tell("agent", node.node_rank, **told)]
    return said


def test_it_runs_once_every_command_has_started_and_ends_well_when_all_did() -> None:
    story = tell_of(2, 4)
    assert start(story) == ["running: 2 commands for 6 ranks on 2 nodes"]
    history = story.decider.history
    assert (history.all_seen, history.stand_ins, history.missing_nodes()) == (True, {0, 2}, [])
    assert story.tell("tick", at=1000.0) == []
    story.node_ends(0)
    story.node_ends(1)
    assert story.verdict().state == "succeeded"


def test_one_that_does_not_start_is_missed() -> None:
    story = tell_of(1, 1)
    story.tell("agent", 0, pid=7, ticks=1, stands_for=0)
    (order,) = story.tell("tick", at=1000.0)
    assert "node1" in order.say
    assert story.verdict().first_failure.node == "node1"  # type: ignore[union-attr]


def test_a_command_that_is_one_rank_is_named_as_that_rank() -> None:
    story = tell_of(1, 1)
    start(story)
    story.tell("agent_exit", 1, 5.0, code=7, signal=None, after_stop=False)
    assert story.orders[-1].stop == (0, 1)
    assert story.orders[-1].say.startswith("the command on node1 ended with exit code 7; stopping")
    story.tell("agent_exit", 0, 6.0, code=None, signal=15, after_stop=True)
    err = {1: 'Traceback (most recent call last):\n  File "t.py", line 3, in f\nValueError: bad\n'}
    verdict = story.verdict(err)
    first = verdict.first_failure
    assert first is not None
    assert (first.node, first.rank, first.exit_code, first.error) == ("node1", 1, 7, "ValueError: bad")
    assert verdict.stopped == (0,)


def test_of_a_command_with_more_ranks_only_the_node_is_known() -> None:
    story = tell_of(2, 2)
    start(story)
    story.tell("agent_exit", 1, 5.0, code=7, signal=None, after_stop=False)
    first = story.verdict({2: "ValueError: bad\n"}).first_failure
    assert first is not None
    assert (first.node, first.rank, first.exit_code) == ("node1", None, 7)


def test_ranks_that_are_seen_take_the_place_of_their_command() -> None:
    story = tell_of(2, 2)
    start(story)
    for rank in (2, 3):
        story.tell("rank", 1, rank=rank, local_rank=rank - 2, world_size=4)
    history = story.decider.history
    assert (set(history.seen), history.stand_ins, history.all_seen) == ({0, 2, 3}, {0}, True)
    (order,) = story.rank_ends(3, code=9)
    assert "rank 3 on node1 ended with exit code 9" in order.say
    story.tell("agent_exit", 1, 5.5, code=1, signal=None, after_stop=False)
    assert 2 not in history.exits
    first = story.verdict().first_failure
    assert first is not None
    assert (first.rank, first.exit_code) == (3, 9)
