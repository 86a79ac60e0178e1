"""What a checkpoint holds, and when one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from workload.schema import Checkpoint
    from workload.trainer import Trained


class Saving:
    """Saves at the interval, at the end and when a stop is asked for; does nothing when the interval is 0."""

    def __init__(self, settings: Checkpoint, folder: Path, trained: Trained) -> None:
        self._settings = settings
        # How many samples were drawn, by all ranks together: another number of ranks goes on where these ended.
        self._progress: dict[str, Any] = {"samples": 0}
        self._parts: dict[str, Any] = {
            "model": trained.parallel.model,
            "optimizer": trained.optimizer,
            "progress": self._progress,
        }
        if trained.scaler.is_enabled():
            self._parts["scaler"] = trained.scaler
        self._checkpointer = _open(folder, settings.keep) if settings.interval else None
        self._saved = 0

    def load(self) -> tuple[int, int]:
        """Load the last whole checkpoint, a collective; give its step and the samples drawn until then, 0 and 0 if none."""
        if self._checkpointer is None or not self._settings.resume:
            return 0, 0
        self._saved = self._checkpointer.load(self._parts)
        return self._saved, int(self._progress["samples"])

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Tell whether a checkpoint is made after this step."""
        if self._checkpointer is None or step == self._saved:
            return False
        return is_last or step % self._settings.interval == 0

    def save(self, step: int, samples: int) -> None:
        """Save, a collective."""
        assert self._checkpointer is not None
        self._progress["samples"] = samples
        self._checkpointer.save(step, self._parts)
        self._saved = step


def _open(folder: Path, keep: int) -> Any:
    from orchestrator.distributed import Checkpointer  # noqa: PLC0415 - a second that only saving needs

    return Checkpointer(folder, keep=keep)
