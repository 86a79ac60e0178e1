"""When a silent node is lost, and when it is this machine that is cut off."""

from __future__ import annotations

import pytest
from clocks import Clock

from orchestrator.phases import contact
from orchestrator.phases.contact import RECENT_S, Contact

LOST_AFTER_S = 60.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(contact, "time", clock)
    return clock


def test_one_silent_node_among_others_is_lost_after_its_time(clock: Clock) -> None:
    one = Contact(range(3))
    broken_at = clock.now
    for _ in range(12):
        clock.now += 5
        one.note(0)
        one.note(1)
    assert one.is_lost(2, broken_at, LOST_AFTER_S, stopping=False)
    assert not one.is_lost(2, broken_at + 1, LOST_AFTER_S, stopping=False)


def test_when_no_node_answers_none_is_lost_until_one_does_and_the_others_had_their_time(clock: Clock) -> None:
    one = Contact(range(3))
    broken_at = clock.now
    clock.now += 3600
    assert not any(one.is_lost(rank, broken_at, LOST_AFTER_S, stopping=False) for rank in range(3))
    assert one.is_lost(0, broken_at, LOST_AFTER_S, stopping=True), "a user who stops it does not wait for ever"
    one.note(0)
    assert not one.is_lost(1, broken_at, LOST_AFTER_S, stopping=False), "it may be back in a second"
    for _ in range(12):
        clock.now += 5
        one.note(0)
    assert one.is_lost(1, broken_at, LOST_AFTER_S, stopping=False)


def test_words_that_are_as_old_as_the_break_are_no_contact(clock: Clock) -> None:
    one = Contact(range(3))
    clock.now += 3
    one.note(0)
    broken_at = clock.now - 1
    clock.now += 11
    assert not one.is_lost(1, broken_at, 10.0, stopping=False), "node 0 spoke last when node 1 did"


def test_the_only_node_left_is_lost_as_ever(clock: Clock) -> None:
    one = Contact(range(2))
    one.drop(0)
    broken_at = clock.now
    clock.now += LOST_AFTER_S
    assert one.is_lost(1, broken_at, LOST_AFTER_S, stopping=False)
    assert RECENT_S < LOST_AFTER_S
