"""When a supervisor ends its run without being told."""

from __future__ import annotations

import pytest
from clocks import Clock

from orchestrator.node import lease
from orchestrator.node.lease import ORDER_S, Lease


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease, "time", clock)
    return clock


def test_without_a_lease_a_run_goes_on_for_ever(clock: Clock) -> None:
    one = Lease(0)
    clock.now += 1e9
    assert one.why_stop(connected=False) == ""


def test_a_lease_ends_unless_it_is_renewed(clock: Clock) -> None:
    one = Lease(60)
    clock.now += 50
    one.renew()
    clock.now += 50
    assert one.why_stop(connected=True) == ""
    clock.now += 10
    assert one.why_stop(connected=True) == "no controller for 60 s"


def test_a_failure_is_left_to_a_controller_for_a_moment_and_not_longer(clock: Clock) -> None:
    one = Lease(0)
    one.note_failure("rank 3 failed", connected=True)
    assert one.why_stop(connected=True) == ""
    assert one.why_stop(connected=False).startswith("rank 3 failed"), "the controller left before it could order"
    clock.now += ORDER_S
    assert one.why_stop(connected=True).startswith("rank 3 failed"), "whoever is connected says nothing"


def test_without_a_controller_a_failure_ends_the_node_at_once(clock: Clock) -> None:
    del clock
    one = Lease(0)
    one.note_failure("rank 3 failed", connected=False)
    one.note_failure("rank 4 failed", connected=False)
    assert one.why_stop(connected=False).startswith("rank 3 failed")


def test_a_time_limit_is_kept_without_a_controller(clock: Clock) -> None:
    one = Lease(0, 60)
    clock.now += 1000
    assert not one.is_out_of_time(connected=False), "it runs from the start of the agent"
    one.start()
    clock.now += 60
    assert one.is_out_of_time(connected=False)
    assert not one.is_out_of_time(connected=True), "the controller orders it, with its own words"
    clock.now += ORDER_S
    assert one.is_out_of_time(connected=True)
