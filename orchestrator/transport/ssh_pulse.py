"""Notices a link that has gone silent: a question that wants an answer, every few seconds, and one watch over all.

TCP alone takes a quarter of an hour, and paramiko's keepalive never looks for the answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from orchestrator.transport.ssh_base import paramiko

ASK_EVERY_S = 5.0
ANSWER_WITHIN_S = 10.0
LOOK_EVERY_S = 0.5


class Pulse:
    """One connection's questions and answers."""

    def __init__(self, transport: paramiko.Transport, lost: Callable[[str], None]) -> None:
        self._transport = transport
        self._lost = lost
        self._asked_at: float | None = None
        self._heard_at = 0.0
        self._ended = threading.Event()
        self._begin_at = time.monotonic() + ASK_EVERY_S
        self._asking = False
        WATCH.add(self)

    def heard(self) -> None:
        """Note that bytes came: an answer may stand in a queue behind many of them."""
        self._heard_at = time.monotonic()

    def end(self) -> None:
        """Ask no more."""
        self._ended.set()
        WATCH.remove(self)

    def _ask(self) -> None:
        while not self._ended.is_set():
            self._asked_at = time.monotonic()
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                self._transport.global_request("keepalive@openssh.com", wait=True)
            self._asked_at = None
            if not self._transport.is_active():
                return
            self._ended.wait(ASK_EVERY_S)

    def look(self) -> None:
        """End the link when an answer is overdue; begin to ask once it has lived so long that it matters."""
        if not self._asking and time.monotonic() >= self._begin_at:
            self._asking = True
            threading.Thread(target=self._ask, name="pulse", daemon=True).start()
        asked_at = self._asked_at
        if asked_at is None:
            return
        silent_s = time.monotonic() - max(asked_at, self._heard_at)
        if silent_s > ANSWER_WITHIN_S:
            self.end()
            self._lost(f"the node has been silent for {silent_s + ASK_EVERY_S:.0f} s")


class Watch:
    """The one thread that looks at every pulse."""

    def __init__(self) -> None:
        self._pulses: set[Pulse] = set()
        self._lock = threading.Lock()
        self._running = False

    def add(self, pulse: Pulse) -> None:
        """Look at one more."""
        with self._lock:
            self._pulses.add(pulse)
            if not self._running:
                self._running = True
                threading.Thread(target=self._look, name="pulse watch", daemon=True).start()

    def remove(self, pulse: Pulse) -> None:
        """Look at one less."""
        with self._lock:
            self._pulses.discard(pulse)

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            with self._lock:
                pulses = list(self._pulses)
                if not pulses:
                    self._running = False
                    return
            for pulse in pulses:
                pulse.look()


WATCH = Watch()
