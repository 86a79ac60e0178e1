"""Ctrl-C, SIGTERM and a lost terminal: an exception while nothing runs on the nodes, an event once something does."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrator.diagnosis.events import Event, Kind
from orchestrator.node import clock


class Terminated(KeyboardInterrupt):
    """SIGTERM came; unwinds like Ctrl-C, with another exit code."""


class Signals:
    """Where signals go at the moment."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] | None = None
        self.background = False
        """Nobody sits before this process: a signal ends it, and the run goes on for the next one to take over."""

    def take(self, number: int, frame: FrameType | None) -> None:
        """Be the signal handler."""
        del frame
        if self._events is None:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        if number == signal.SIGHUP:
            # The terminal is gone, not the run.
            self.background = True
            return
        kind: Kind = "interrupt" if number == signal.SIGINT else "terminate"
        # SimpleQueue.put may be called from a handler that interrupts another put.
        self._events.put(Event(kind="leave" if self.background else kind, time=clock.now()))

    @contextmanager
    def as_events(self, events: queue.SimpleQueue[Event]) -> Iterator[None]:
        """Turn signals into events for the time of a block; after it they are dropped until `release`.

        What has run has to be judged and recorded, whatever key is pressed in that moment.
        """
        self._events = events
        try:
            yield
        finally:
            self._events = queue.SimpleQueue()

    def release(self) -> None:
        """Let signals be exceptions again."""
        self._events = None


@contextmanager
def caught_signals() -> Iterator[Signals]:
    """Take SIGINT, SIGTERM and SIGHUP for the time of a block."""
    signals = Signals()
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, signals.take) for number in wanted}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
