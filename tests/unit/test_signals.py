from __future__ import annotations

import queue
import signal

import pytest

from orchestrator.diagnosis.events import Event
from orchestrator.phases.signals import Terminated, caught_signals


def test_before_anything_runs_a_signal_unwinds() -> None:
    with caught_signals(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with caught_signals(), pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)


def test_while_something_runs_a_signal_is_an_event() -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with caught_signals() as signals, signals.as_events(events):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert [events.get_nowait().kind, events.get_nowait().kind] == ["interrupt", "terminate"]


def test_until_the_end_is_recorded_a_signal_is_dropped() -> None:
    with caught_signals() as signals:
        with signals.as_events(queue.SimpleQueue()):
            pass
        signal.raise_signal(signal.SIGINT)
        signals.release()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with caught_signals():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_lost_terminal_leaves_the_run_and_then_a_signal_leaves_us_out() -> None:
    # Under nohup these tests themselves have it ignored.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with caught_signals() as signals:
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGHUP)
        with signals.as_events(events):
            signal.raise_signal(signal.SIGHUP)
            assert signals.background
            assert events.empty()
            signal.raise_signal(signal.SIGTERM)
    assert events.get_nowait().kind == "leave"
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with caught_signals():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, "nohup"
    signal.signal(signal.SIGHUP, before)
