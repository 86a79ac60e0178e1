from __future__ import annotations

import threading
import time

import pytest

from orchestrator.errors import LinkError, LoginError, Several
from orchestrator.transport.fanout import fan_out
from orchestrator.transport.isself import is_own_address


def test_results_stand_in_the_order_of_the_items_whatever_finishes_first() -> None:
    later = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert later.wait(5)
        if item == 3:
            later.set()
        return item * 10

    assert fan_out(work, [0, 1, 2, 3], 4) == [0, 10, 20, 30]


def test_no_more_than_width_work_at_once() -> None:
    lock = threading.Lock()
    now = most = 0

    def work(_: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.002)
        with lock:
            now -= 1

    fan_out(work, range(30), 3)
    assert 1 < most <= 3


def test_every_error_is_told_in_order_and_all_items_are_worked_on() -> None:
    seen = []

    def work(item: int) -> None:
        seen.append(item)
        if item % 2:
            raise LinkError(what="refused", where=f"node{item}")

    with pytest.raises(Several) as told:
        fan_out(work, [0, 1, 2, 3], 1)
    assert [error.where for error in told.value.errors] == ["node1", "node3"]
    assert told.value.exit_code == 3
    assert seen == [0, 1, 2, 3]


def test_a_single_error_keeps_its_own_type() -> None:
    def work(item: int) -> None:
        if item == 1:
            raise LoginError(what="refused")

    with pytest.raises(LoginError):
        fan_out(work, [0, 1], 2)


def test_a_bug_is_not_taken_for_an_error_of_a_node() -> None:
    with pytest.raises(ZeroDivisionError):
        fan_out(lambda item: 1 // item, [1, 0], 2)


def test_nothing_to_do() -> None:
    assert fan_out(lambda item: item, [], 4) == []


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "::1"])
def test_loopback_is_this_machine(address: str) -> None:
    assert is_own_address(address)


@pytest.mark.parametrize("address", ["203.0.113.7", "2001:db8::7", "node1"])
def test_another_machine_and_a_name_are_not(address: str) -> None:
    assert not is_own_address(address)
