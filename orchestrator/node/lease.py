"""What a supervisor knows of its controller on the launch host, and what it does while there is none."""

from __future__ import annotations

import time

ORDER_S = 5.0
"""A controller that lives orders the stop within a second of a failure; after so long nobody will."""
FOREVER = float("inf")


class Lease:
    """Renewed by every beat of a controller; tells when the run has to be ended without one."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s or FOREVER
        self._beat = time.monotonic()
        self._stop_by = FOREVER
        self._failure = ""

    def renew(self) -> None:
        """Take a sign of life."""
        self._beat = time.monotonic()

    def note_failure(self, what: str, *, connected: bool) -> None:
        """Take a failure on this node: a controller may stop the run itself, nobody else would."""
        if not self._failure:
            self._failure = what
            self._stop_by = time.monotonic() + (ORDER_S if connected else 0.0)

    def why_stop(self, *, connected: bool) -> str:
        """Say why the run has to be stopped now; empty while it may go on."""
        now = time.monotonic()
        if self._failure and (now >= self._stop_by or not connected):
            return self._failure + ", and no controller was there to stop the run"
        if now - self._beat >= self._lease_s:
            return f"no controller for {self._lease_s:g} s"
        return ""
