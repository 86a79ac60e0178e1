"""The record of a run: everything that happened, one JSON line each, in UTC."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from orchestrator.output.pipes import drain_to_nowhere


def render_time(moment: datetime) -> str:
    """Render a moment as UTC with milliseconds, ending in Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def render_event(moment: datetime, kind: str, fields: dict[str, Any]) -> str:
    """Render one event as one line of JSON, without the newline."""
    return json.dumps({"time": render_time(moment), "kind": kind, **fields}, ensure_ascii=False, default=str)


class EventLog:
    """Append events to a file, and mirror them to a stream for --json."""

    def __init__(
        self, path: Path, mirror: TextIO | None = None, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Open the file to append; what it holds stays."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Surrogates stand for bytes of arguments that are not UTF-8; they must not end a run.
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n")
        self._mirror = mirror
        self._now = now

    def record(self, kind: str, **fields: Any) -> None:
        """Write one event; the verdict is on the disk when this returns."""
        line = render_event(self._now(), kind, fields) + "\n"
        self._file.write(line)
        self._file.flush()
        if kind == "verdict":
            os.fsync(self._file.fileno())
        self._mirror_line(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _mirror_line(self, line: str) -> None:
        if self._mirror is None:
            return
        try:
            self._mirror.write(line.encode("utf-8", "backslashreplace").decode())
            self._mirror.flush()
        except OSError as error:  # nobody reads any more, or a full disk is behind it: the run goes on
            drain_to_nowhere(self._mirror, error)
            self._mirror = None
