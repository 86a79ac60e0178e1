"""Work that is begun beside something else: taken, failed, called off before and after it is there."""

from __future__ import annotations

import threading

import pytest

from orchestrator.phases.later import Later

WAIT_S = 10.0


def test_what_is_taken_is_not_undone() -> None:
    undone: list[int] = []
    later = Later("test", lambda: 7, undone.append)
    assert later.take() == 7
    later.cancel()
    assert undone == []


def test_an_error_is_raised_where_the_result_is_taken() -> None:
    def fail() -> int:
        raise LookupError("nothing there")

    later = Later("test", fail, lambda _: None)
    with pytest.raises(LookupError, match="nothing there"):
        later.take()
    later.cancel()


def test_called_off_when_it_is_there_it_is_undone_at_once() -> None:
    undone: list[int] = []
    later = Later("test", lambda: 7, undone.append)
    later.cancel(WAIT_S)
    assert undone == [7]


def test_called_off_before_it_is_there_it_undoes_itself() -> None:
    may_end, undone = threading.Event(), threading.Event()

    def work() -> int:
        may_end.wait(WAIT_S)
        return 7

    later = Later("test", work, lambda _: undone.set())
    later.cancel()
    assert not undone.is_set()
    may_end.set()
    assert undone.wait(WAIT_S)
