"""What a supervisor knows of its controller on the launch host, and what it does while there is none."""

from __future__ import annotations

import time

ORDER_S = 5.0
"""A controller that lives orders the stop within a second of a failure; after so long nobody will."""
FOREVER = float("inf")


class Lease:
    """Renewed by every beat of a controller; tells when the run has to be ended without one."""

    def __init__(self, lease_s: float, limit_s: float = 0.0) -> None:
        """Take the lease and the time limit of the run, 0 for none."""
        self._lease_s = lease_s or FOREVER
        self._limit_s = limit_s or FOREVER
        self._started = FOREVER
        self._beat = time.monotonic()
        self._stop_by = FOREVER
        self._failure = ""

    def start(self) -> None:
        """Take the start of the agent: from now on the time limit runs."""
        self._started = time.monotonic()

    def renew(self) -> None:
        """Take a sign of life."""
        self._beat = time.monotonic()

    def note_failure(self, what: str, *, connected: bool) -> None:
        """Take a failure on this node: a controller may stop the run itself, nobody else would."""
        if not self._failure:
            self._failure = what
            self._stop_by = time.monotonic() + (ORDER_S if connected else 0.0)

    def is_out_of_time(self, *, connected: bool) -> bool:
        """Tell whether the time limit is over, and no controller is there that keeps it."""
        over_s = time.monotonic() - self._started - self._limit_s
        return over_s >= (ORDER_S if connected else 0.0)

    def why_stop(self, *, connected: bool) -> str:
        """Say why the run has to be stopped now; empty while it may go on."""
        now = time.monotonic()
        if self._failure and (now >= self._stop_by or not connected):
            return self._failure + ", and no controller was there to stop the run"
        if now - self._beat >= self._lease_s:
            return f"no controller for {self._lease_s:g} s"
        return ""
