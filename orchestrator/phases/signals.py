"""Ctrl-C and SIGTERM: an exception while nothing runs on the nodes, an event once something does."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrator.diagnosis.events import Event, Kind


class Terminated(KeyboardInterrupt):
    """SIGTERM came; unwinds like Ctrl-C, with another exit code."""


class Signals:
    """Where signals go at the moment."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] | None = None

    def take(self, number: int, frame: FrameType | None) -> None:
        """Be the signal handler."""
        del frame
        if self._events is not None:
            # SimpleQueue.put may be called from a handler that interrupts another put.
            kind: Kind = "interrupt" if number == signal.SIGINT else "terminate"
            self._events.put(Event(kind=kind, time=time.time()))
        elif number == signal.SIGTERM:
            raise Terminated
        else:
            raise KeyboardInterrupt

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
    """Take SIGINT and SIGTERM for the time of a block."""
    signals = Signals()
    before = {number: signal.signal(number, signals.take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
