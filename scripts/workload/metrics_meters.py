"""Stop-watches of a rank: on a CPU a step has ended when its call returns, on a GPU when the GPU says so."""

from __future__ import annotations

import os
import resource
import time
from typing import Any, NamedTuple, Union

import torch

Number = Union[torch.Tensor, float]
KIB_PER_MIB = 1 << 10
BYTES_PER_MIB = 1 << 20
GPU_PATIENCE_S = 2.0
"""How long a GPU may take to end its steps after a failure: what waits for a dead peer never ends."""


class Reading(NamedTuple):
    """What a step left; None where it can no longer be read."""

    step_ms: float | None
    loss: float | None
    grad_norm: float | None


UNREAD = Reading(None, None, None)


def _plain(value: Any) -> Any:
    """Take a tensor out of the graph, and put one together that is spread over ranks."""
    whole = getattr(value, "full_tensor", None)
    return (whole() if whole is not None else value).detach()


def _read(value: Number) -> float:
    return float(_plain(value) if isinstance(value, torch.Tensor) else value)


def _build_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def wait_for_gpu(device: torch.device, patience_s: float) -> bool:
    """Wait until the GPU has ended what it was given, but not for ever; True at once on a CPU."""
    if device.type != "cuda":
        return True
    mark = _build_event()
    mark.record(torch.cuda.current_stream(device))
    deadline = time.monotonic() + patience_s
    while not mark.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class CpuMeter:
    """Reads everything at once."""

    def __init__(self) -> None:
        self._begin = 0.0
        self._readings: list[Reading] = []
        self._page_mib = os.sysconf("SC_PAGE_SIZE") / BYTES_PER_MIB
        try:
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not on Linux
            self._statm = -1

    def start(self) -> None:
        """Begin a step."""
        self._begin = time.perf_counter()

    def end(self, loss: Number, grad_norm: Number | None) -> None:
        """End the step."""
        step_ms = 1000 * (time.perf_counter() - self._begin)
        norm = None if grad_norm is None else _read(grad_norm)
        self._readings.append(Reading(step_ms, _read(loss), norm))

    def read(self, *, patient: bool) -> list[Reading]:  # noqa: ARG002 - there is nothing to wait for
        """Give what each step left since the last reading."""
        readings, self._readings = self._readings, []
        return readings

    def memory(self) -> dict[str, float]:
        """Measure the process's resident memory."""
        if self._statm < 0:
            return {}
        resident = int(os.pread(self._statm, 100, 0).split()[1]) * self._page_mib
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB
        # The kernel counts the resident pages of each thread in lots, so that the peak can lag behind.
        return {"memory_mib": resident, "peak_memory_mib": max(peak, resident)}


class GpuMeter:
    """Has the GPU note times and figures as it comes by; the host waits for it only when it reads."""

    def __init__(self, device: torch.device, capacity: int) -> None:
        self._device = device
        # Pinned: only then does a copy from the GPU go on in the background.
        self._cells = [tuple(row) for row in torch.zeros((capacity, 2), pin_memory=True)]
        self._events: list[tuple[Any, Any]] = []
        self._has_norm: list[bool] = []

    def start(self) -> None:
        """Begin a step."""
        if len(self._events) <= len(self._has_norm):
            self._events.append((_build_event(), _build_event()))
        self._events[len(self._has_norm)][0].record()

    def end(self, loss: Number, grad_norm: Number | None) -> None:
        """End the step."""
        slot = len(self._has_norm)
        for cell, value in zip(self._cells[slot], (loss, grad_norm)):
            if isinstance(value, torch.Tensor):
                cell.copy_(_plain(value).float(), non_blocking=True)
            elif value is not None:
                cell.fill_(value)
        self._events[slot][1].record()
        self._has_norm.append(grad_norm is not None)

    def read(self, *, patient: bool) -> list[Reading]:
        """Give what each step left since the last reading; impatient ones get what the GPU has ended soon."""
        if not self._has_norm:
            return []
        readings = []
        try:
            if patient:
                self._events[len(self._has_norm) - 1][1].synchronize()
            else:
                wait_for_gpu(self._device, GPU_PATIENCE_S)
            for (begin, end), cells, has_norm in zip(self._events, self._cells, self._has_norm):
                if not patient and not end.query():
                    break
                loss, norm = (float(cell) for cell in cells)
                readings.append(Reading(begin.elapsed_time(end), loss, norm if has_norm else None))
        except RuntimeError:  # the GPU itself has failed
            if patient:
                raise
        readings += [UNREAD] * (len(self._has_norm) - len(readings))
        self._has_norm = []
        return readings

    def memory(self) -> dict[str, float]:
        """Ask the allocator: no call to the GPU."""
        held = torch.cuda.memory_stats_as_nested_dict(self._device)["allocated_bytes"]["all"]
        return {
            "memory_mib": held["current"] / BYTES_PER_MIB,
            "peak_memory_mib": held["peak"] / BYTES_PER_MIB,
        }
