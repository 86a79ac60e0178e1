"""What a checkpoint holds, and when one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.distributed import DistributedError
from workload.schema import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from workload.schema import Checkpoint, Optimizer
    from workload.trainer import Trained


class Saving:
    """Saves at the interval, at the end and when a stop is asked for; does nothing when the interval is 0."""

    def __init__(self, settings: Checkpoint, optimizer: Optimizer, folder: Path, trained: Trained) -> None:
        self._settings = settings
        # How many samples were drawn, by all ranks together: another number of ranks goes on where these ended.
        self._folder, self._optimizer_name = folder, optimizer.name
        self._progress: dict[str, Any] = {"samples": 0, "optimizer": optimizer.name}
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
        trained = self._parts["optimizer"]
        asked = [{name: value for name, value in group.items() if name != "params"} for group in trained.param_groups]
        try:
            self._saved = self._checkpointer.load(self._parts)
        except DistributedError as error:
            raise ConfigError(f"{error}; {self._remedy()}") from None
        before = self._progress["optimizer"]
        if before != self._optimizer_name:
            raise ConfigError(
                f"optimizer.name is {self._optimizer_name}, the checkpoint of step {self._saved} in {self._folder} is "
                f"of {before}; {self._remedy()}"
            )
        # What the config says of rates and decay holds from here on; the checkpoint brings its own along.
        for group, options in zip(trained.param_groups, asked):
            group.update(options)
        return self._saved, int(self._progress["samples"])

    def _remedy(self) -> str:
        return "name another checkpoint.dir, or start anew with checkpoint.resume: false"

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

    try:
        return Checkpointer(folder, keep=keep)
    except DistributedError as error:
        raise ConfigError(f"checkpoint.dir: {error}") from None
