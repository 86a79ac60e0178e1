"""Tells ranks that work from ranks that stand, by what their processors, files and GPUs did for a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.light_dataclass import dataclass

BUSY_CORES = 0.2
"""Watchdogs, heartbeats and trackers of a rank that waits stay below this."""
SPIN_CORES = 2.5
"""What a rank burns whose GPU spins in a collective: its main thread polls, and so does the library's own."""
BUSY_MIB_S = 0.1
"""A slow upload takes next to no processor, and moves bytes, of files or through connections."""
WORK_PERCENT = 5
SPIN_PERCENT = 95
SPIN_POWER = 0.4
"""Of its limit: a GPU that waits in a kernel looks fully used and stays cool."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What the ranks of a run did for a moment."""

    busy: tuple[int, ...] = ()
    idle: tuple[int, ...] = ()
    spins: bool = False
    """GPUs wait in a kernel; ranks that drive them look busy."""
    outputs_age_s: float | None = None
    """Since anything was last written below the outputs, on any node."""

    @property
    def stands(self) -> bool:
        """Nobody works, as far as it is known of anybody."""
        return bool(self.idle) and not self.busy


def fold_activity(answers: Sequence[Mapping[str, Any]]) -> Activity:
    """Put together what the nodes measured."""
    busy: list[int] = []
    idle: list[int] = []
    spins = False
    for answer in answers:
        ranks = sorted(answer.get("ranks") or (), key=lambda one: int(one["rank"]))
        gpus = sorted(answer.get("gpus") or (), key=lambda gpu: int(gpu.get("index") or 0))
        spins = spins or any(_spins(gpu) for gpu in gpus)
        many = _excuses_all(ranks, gpus)
        for place, rank in enumerate(ranks):
            own = [gpus[place]] if len(gpus) == len(ranks) else gpus
            works = _works(rank, own, spins=_spins(own[0]) if len(own) == 1 else many)
            if works is not None:
                (busy if works else idle).append(int(rank["rank"]))
    ages = [float(answer["outputs_age_s"]) for answer in answers if answer.get("outputs_age_s") is not None]
    return Activity(
        busy=tuple(sorted(busy)), idle=tuple(sorted(idle)), spins=spins, outputs_age_s=min(ages, default=None)
    )


def _excuses_all(ranks: Sequence[Mapping[str, Any]], gpus: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether GPUs that spin explain all processors that poll, where nobody knows whose GPU is which."""
    polling = sum(BUSY_CORES <= (_number(rank.get("cpu_cores")) or 0.0) < SPIN_CORES for rank in ranks)
    return polling <= sum(_spins(gpu) for gpu in gpus)


def _works(rank: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]], *, spins: bool) -> bool | None:
    """Say whether a rank works; None where nothing is known of it."""
    cores = _number(rank.get("cpu_cores"))
    moved = max(_number(rank.get(name)) or 0.0 for name in ("io_mib_s", "net_mib_s"))
    if any(_computes(gpu) for gpu in gpus) or moved >= BUSY_MIB_S:
        return True
    if cores is None:
        return None
    return cores >= (SPIN_CORES if spins else BUSY_CORES)


def _spins(gpu: Mapping[str, Any]) -> bool:
    percent, power, limit = (_number(gpu.get(name)) for name in ("util_percent", "power_w", "power_limit_w"))
    if percent is None or power is None or not limit:
        return False
    return percent >= SPIN_PERCENT and power / limit < SPIN_POWER


def _computes(gpu: Mapping[str, Any]) -> bool:
    percent = _number(gpu.get("util_percent"))
    return percent is not None and percent >= WORK_PERCENT and not _spins(gpu)


def _number(raw: Any) -> float | None:
    return float(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else None
