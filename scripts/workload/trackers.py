"""TensorBoard and Weights & Biases: both get the very lines of the metrics file, under the same names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from workload.schema import ConfigError, Logging

if TYPE_CHECKING:
    from pathlib import Path

    from workload.metrics import RankInfo

NOT_LOGGED = frozenset({"time", "host", "node_rank", "rank", "step", "not_finite"})
WANDB_START_S = 30
"""How long the first contact may take: the other ranks wait meanwhile."""


class Tracker(Protocol):
    """One place where figures go."""

    name: str

    def log(self, step: int, when: datetime, values: dict[str, float]) -> None:
        """Take the figures of a step."""

    def close(self, *, failed: bool) -> None:
        """Write what is left."""


class Trackers:
    """The trackers of one rank; one that fails is given up with a warning, the training goes on."""

    def __init__(self, trackers: list[Tracker]) -> None:
        self._trackers = trackers

    def log(self, line: dict[str, Any]) -> None:
        """Take a line of the metrics file."""
        values = {name: value for name, value in line.items() if name not in NOT_LOGGED and value is not None}
        if not values:
            return
        # fromisoformat of Python 3.9 takes this form too: an offset of +00:00.
        when = datetime.fromisoformat(line["time"])
        for tracker in list(self._trackers):
            try:
                tracker.log(line["step"], when, values)
            except Exception as error:  # noqa: BLE001 - whatever a tracker dies of, the training must not
                self._give_up(tracker, error)

    def close(self, *, failed: bool = False) -> None:
        """Have every tracker write what is left, and how the run ended."""
        for tracker in list(self._trackers):
            try:
                tracker.close(failed=failed)
            except Exception as error:  # noqa: BLE001 - as above
                self._give_up(tracker, error)
        self._trackers = []

    def _give_up(self, tracker: Tracker, error: Exception) -> None:
        self._trackers.remove(tracker)
        _warn(f"{tracker.name} failed and gets no more figures: {type(error).__name__}: {error}")


class _TensorBoard:
    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        # Only here: it may be missing on a node.
        tensorboard = importlib.import_module("torch.utils.tensorboard")
        self._writer: Any = tensorboard.SummaryWriter(log_dir=str(folder))

    def log(self, step: int, when: datetime, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step, walltime=when.timestamp())
        self._writer.flush()

    def close(self, *, failed: bool) -> None:  # noqa: ARG002 - event files do not say how a run ended
        self._writer.close()


class _Wandb:
    name = "W&B"

    def __init__(self, logging: Logging, folder: Path, name: str, group: str | None, settings: dict[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        self._run: Any = wandb.init(
            project=logging.wandb_project,
            # Who sets WANDB_MODE=disabled in a shell means it.
            mode=os.environ.get("WANDB_MODE") or logging.wandb_mode,
            dir=str(folder),
            name=name,
            group=group,
            config=settings,
            # The launcher has the console's text already.
            settings=wandb.Settings(console="off", init_timeout=WANDB_START_S),
        )

    def log(self, step: int, when: datetime, values: dict[str, float]) -> None:  # noqa: ARG002 - it has a clock of its own
        self._run.log(values, step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def open_trackers(logging: Logging, info: RankInfo, folder: Path, *, settings: dict[str, Any]) -> Trackers:
    """Open what is configured, below the folder; a collective: ConfigError on all ranks where TensorBoard is missing on one."""
    _check_tensorboard(logging, info)
    if info.rank and not logging.per_rank:
        return Trackers([])
    label = f"rank_{info.rank:02d}"
    trackers: list[Tracker] = []
    if logging.tensorboard:
        trackers.append(_TensorBoard(folder / "tensorboard" / label if logging.per_rank else folder / "tensorboard"))
    if logging.wandb:
        run_id = _find_run_id()
        name = "-".join(part for part in (run_id, label if logging.per_rank else None) if part) or "run"
        trackers += _open_wandb(logging, folder, name, run_id if logging.per_rank else None, settings)
    return Trackers(trackers)


def _find_run_id() -> str | None:
    # "none" is torchrun's word for a run that was given no id.
    names = (os.environ.get("AORTA_RUN_ID"), os.environ.get("TORCHELASTIC_RUN_ID"))
    return next((name for name in names if name and name != "none"), None)


def _open_wandb(
    logging: Logging, folder: Path, name: str, group: str | None, settings: dict[str, Any]
) -> list[Tracker]:
    if importlib.util.find_spec("wandb") is None:
        _warn("logging.wandb is on, but wandb is not installed: pip install wandb; going on without it")
        return []
    try:
        return [_Wandb(logging, folder, name, group, settings)]
    except Exception as error:  # noqa: BLE001 - no network, no key, another version: the training goes on
        _warn(f"W&B cannot be used, going on without it: {type(error).__name__}: {error}")
        return []


def _check_tensorboard(logging: Logging, info: RankInfo) -> None:
    """Agree whether every rank that is to log has TensorBoard."""
    if not logging.tensorboard:
        return
    from orchestrator.distributed import all_gather_object  # noqa: PLC0415 - needed here alone

    logs = logging.per_rank or info.rank == 0
    answers = all_gather_object((info.host, _why_no_tensorboard() if logs else None))
    faults = sorted({(host, why) for host, why in answers if why is not None})
    if faults:
        hosts = ", ".join(dict.fromkeys(host for host, _ in faults))
        raise ConfigError(
            f"logging.tensorboard is on, but tensorboard cannot be used on {hosts} ({faults[0][1]}): "
            "pip install tensorboard there, or set logging.tensorboard: false"
        )


def _why_no_tensorboard() -> str | None:
    try:
        importlib.import_module("torch.utils.tensorboard")
    except Exception as error:  # noqa: BLE001 - a broken installation fails in many ways
        return f"{type(error).__name__}: {error}"
    return None


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
