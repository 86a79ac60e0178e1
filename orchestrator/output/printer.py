"""A thread of its own for training output: a screen that is stuck (Ctrl-S, a full pipe) must not hold up a run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from orchestrator.output.screen import LogScreen

WAITING = 256
"""Pieces that may wait for the screen; each is at most 128 KiB."""
PATIENCE_S = 2.0
"""So long a piece waits for a stuck screen; then it is left out there. The files hold everything."""

Piece = tuple[int, int | None, str, bytes]


class Printer:
    """Passes pieces of logs from many threads to the one screen."""

    def __init__(self, screen: LogScreen) -> None:
        self._screen = screen
        self._pieces: queue.Queue[Piece | Callable[[], None] | None] = queue.Queue(WAITING)
        self._stuck_until = 0.0
        self.left_out = 0
        """Bytes that the screen did not take in time."""
        self._thread = threading.Thread(target=self._run, name="printer", daemon=True)
        self._thread.start()

    def show(self, node_rank: int, rank: int | None, stream: str, data: bytes) -> None:
        """Hand a piece over; returns at once unless the screen is behind."""
        if self._screen.closed or not self._screen.shows(rank):
            return
        # Once it was found stuck, nobody waits for it again until it has taken something.
        patience_s = 0.0 if time.monotonic() < self._stuck_until else PATIENCE_S
        try:
            self._pieces.put((node_rank, rank, stream, data), timeout=patience_s or None, block=patience_s > 0)
        except queue.Full:
            self._stuck_until = time.monotonic() + PATIENCE_S
            self.left_out += len(data)

    def clear_line(self) -> None:
        """Remove a progress bar before somebody else writes; at worst the next state draws it again."""
        self._screen.hide_state()

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            if callable(piece):
                piece()
            else:
                self._screen.feed(*piece)
                self._stuck_until = 0.0

    def close(self) -> None:
        """Print what waits, as far as the screen takes it."""
        for last in (self._screen.flush, None):
            try:
                self._pieces.put(last, timeout=PATIENCE_S)
            except queue.Full:
                return
        self._thread.join(PATIENCE_S)
