"""What a person reads: a line each few steps from the main process; with logging.level: debug, more from every rank."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.distributed import NodeInfo

LEVELS = {"debug": 0, "info": 1, "warning": 2}


class Console:
    """Writes whole lines, each at once."""

    def __init__(self, level: str, info: NodeInfo) -> None:
        self._level = LEVELS[level]
        self._info = info

    def debug(self, text: str) -> None:
        """Tell what this rank did."""
        if self._level <= LEVELS["debug"]:
            self._write(f"rank {self._info.rank}: {text}", sys.stdout)

    def info(self, text: str) -> None:
        """Tell how far it came, once."""
        if self._level <= LEVELS["info"] and self._info.rank == 0:
            self._write(text, sys.stdout)

    def warn(self, text: str) -> None:
        """Tell what goes another way than asked, once."""
        if self._info.rank == 0:
            self._write(f"warning: {text}", sys.stderr)

    def result(self, text: str) -> None:
        """Tell what came out, at any level."""
        if self._info.rank == 0:
            self._write(text, sys.stdout)

    def step(self, steps: int, lines: list[dict[str, Any]], held_out: float | None = None) -> None:
        """Tell of the steps measured since the last time."""
        texts = []
        if lines and lines[-1].get("loss") is not None:
            texts.append(f"loss {lines[-1]['loss']:.4g}")
        if held_out is not None:
            texts.append(f"held-out loss {held_out:.4g}")
        times = [line["step_ms"] for line in lines if line.get("step_ms") is not None]
        if times:
            texts.append(f"{sum(times) / len(times):.4g} ms a step")
        if lines:
            self.info(f"step {lines[-1]['step']} of {steps}: {', '.join(texts)}")

    def _write(self, text: str, file: Any) -> None:
        file.write(f"{text}\n")
        file.flush()
