"""Chrome traces of a few steps, on the ranks that are asked for, and what they say of the communication."""

from __future__ import annotations

import atexit
import gzip
import os
import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function, schedule

from workload.metrics_meters import GPU_PATIENCE_S, wait_for_gpu
from workload.overlap_stream import TraceError
from workload.overlap_trace import OWN_STEP, read_trace
from workload.schema import ConfigError, Profiling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from workload.metrics import Metrics, RankInfo

NS_PER_MS = 1e6
GZIP_LEVEL = 3
"""A trace shrinks to a tenth at any level, and all ranks wait until it is written."""
RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


class StepProfiler:
    """Counts the steps; on a rank that is not traced it does nothing else."""

    @contextmanager
    def step(self, step: int) -> Iterator[None]:  # noqa: ARG002 - those who trace need it
        """Stand around exactly one step."""
        yield


class _Tracer(StepProfiler):
    """Traces the steps of one rank, window by window."""

    def __init__(self, settings: Profiling, info: RankInfo, folder: Path, metrics: Metrics) -> None:
        self._info = info
        self._folder = folder
        self._metrics = metrics
        self._device = info.device
        self._window = 0
        self._taken = 0
        """Steps so far in this process, which the schedule goes by; a resumed run's steps have higher numbers."""
        self._traced: list[int] = []
        activities = [ProfilerActivity.CPU]
        if info.device.type == "cuda":  # ROCm answers to the same name
            activities.append(ProfilerActivity.CUDA)
        self._schedule = schedule(
            wait=settings.wait, warmup=settings.warmup, active=settings.active, repeat=settings.repeat
        )
        self._profile = profile(
            activities=activities,
            schedule=self._schedule,
            on_trace_ready=self._save,
            record_shapes=settings.record_shapes,
            profile_memory=settings.profile_memory,
            with_stack=settings.with_stack,
        )

    def start(self) -> None:
        """Begin with the schedule."""
        self._profile.start()

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Stand around exactly one step; leaving the last one of a window writes its trace."""
        action = self._schedule(self._taken)
        if action in RECORDING:
            self._metrics.hold_from(step)
            self._traced.append(step)
            # The host runs ahead of the GPU: without this and the next, kernels would lie beside their step's mark.
            self._synchronize()
        with record_function(f"{OWN_STEP}#{step}"):
            yield
            if action in RECORDING:
                self._synchronize()
        self._taken += 1
        self._profile.step()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def stop(self) -> None:
        """End; a window that has begun is written as far as it came."""
        begun = bool(self._traced) or self._window
        self._profile.stop()
        if not begun:
            _warn(f"profiling: {self._taken} steps were too few to reach the first window; no trace was written")

    def give_up(self) -> None:
        """End after a failure, where that cannot hang: to end a trace means to wait for the GPU."""
        # A profiler that is never ended crashes the interpreter at its end, and the crash would hide the failure.
        try:
            if wait_for_gpu(self._device, GPU_PATIENCE_S):
                self._profile.stop()
        except RuntimeError as error:
            _warn(f"profiling: the profiler could not be ended: {error}")

    def _save(self, finished: Any) -> None:
        # The profiler calls this for its windows in order, and at its end once more where one is open.
        if not self._traced:
            return
        steps, self._traced = self._traced, []
        comm_ms: dict[int, float] = {}
        try:
            comm_ms = self._write_trace(finished, steps)
        except (OSError, RuntimeError, TraceError) as error:
            # Hours of training are worth more than a trace.
            _warn(f"profiling: the trace of steps {steps[0]} to {steps[-1]} could not be written: {error}")
        self._metrics.release(comm_ms)

    def _write_trace(self, finished: Any, steps: list[int]) -> dict[int, float]:
        folder = self._folder / "traces"
        folder.mkdir(parents=True, exist_ok=True)
        # An earlier run's windows stay: this one's are counted on.
        while (path := folder / f"rank_{self._info.rank:02d}_window_{self._window}.json.gz").exists():
            self._window += 1
        self._window += 1
        plain, part = path.with_suffix(".part"), path.with_suffix(".gz.part")
        try:
            finished.export_chrome_trace(str(plain))
            trace = read_trace(plain)
            with plain.open("rb") as source, gzip.open(part, "wb", compresslevel=GZIP_LEVEL) as target:
                shutil.copyfileobj(source, target)
            # By rename: what lies there under its own name is whole.
            part.rename(path)
        finally:
            plain.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
        return {step: trace.steps[step].communication / NS_PER_MS for step in steps if step in trace.steps}


@contextmanager
def profile_steps(config: Profiling, info: RankInfo, folder: Path, metrics: Metrics) -> Iterator[StepProfiler]:
    """Trace the steps inside into <folder>/traces/rank_00_window_0.json.gz and on; the metrics get each traced step's comm_ms."""
    check_ranks(config, info.world_size)
    if not config.enabled or (config.ranks != "all" and info.rank not in config.ranks):
        yield StepProfiler()
        return
    tracer = _Tracer(config, info, folder, metrics)
    tracer.start()
    try:
        yield tracer
    except BaseException:
        tracer.give_up()
        raise
    tracer.stop()


def end_at_once() -> None:
    """End this process well, past the destructors of its libraries.

    A process that has profiled is now and then aborted by them (seen with PyTorch 2.13 on busy CPUs: "terminate called
    without an active exception"), and a run that had come to its end is then taken for a failed one.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - what was registered has its turn; there is no public way
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def check_ranks(config: Profiling, world_size: int) -> None:
    """Refuse ranks that there are not."""
    if not config.enabled or isinstance(config.ranks, str):
        return
    strange = [rank for rank in config.ranks if not 0 <= rank < world_size]
    if strange:
        names = ", ".join(map(str, strange))
        raise ConfigError(f"profiling.ranks names {names}, but the ranks of this run are 0 to {world_size - 1}")


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
