"""One file of measurements a rank, one JSON line a step; docs/metrics.md names every field.

Nothing waits for a GPU between two flushes: what a step leaves there is copied in the background and read when lines are written.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from workload.metrics_meters import CpuMeter, GpuMeter, Number
from workload.schema import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import torch

MOST_PENDING = 1000
"""Steps whose figures may wait to be written: what a crash can cost, and what is held in memory."""
DIGITS = 9
"""Enough for a float32 to be read back as it was."""


class RankInfo(Protocol):
    """What is asked of a NodeInfo here."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def node_rank(self) -> int:
        """The node's place in the node list."""

    @property
    def world_size(self) -> int:
        """How many ranks there are."""

    @property
    def host(self) -> str:
        """The node's own name for itself."""

    @property
    def device(self) -> torch.device:
        """The rank's GPU, or its CPU."""


class LineLog(Protocol):
    """Whoever wants each line as well."""

    def log(self, line: dict[str, Any]) -> None:
        """Take one line, in the order of steps."""

    def close(self, *, failed: bool) -> None:
        """Write what is left."""


def find_output_dir() -> Path:
    """Find where the launcher collects from; ./outputs without one."""
    return Path(os.environ.get("AORTA_OUTPUT_DIR") or "outputs")


class Metrics:
    """Measures the steps of one rank and writes rank_00_metrics.jsonl; leaving it writes what is left, after a failure too."""

    def __init__(self, folder: Path, info: RankInfo, *, trackers: LineLog | None = None) -> None:
        self._place: dict[str, object] = {"host": info.host, "node_rank": info.node_rank, "rank": info.rank}
        self._trackers = trackers
        self._meter = GpuMeter(info.device, MOST_PENDING + 1) if info.device.type == "cuda" else CpuMeter()
        self._pending: list[dict[str, Any]] = []
        """Lines whose figures may still be on their way from the GPU, and those that wait for a profiler's window."""
        self._read = 0
        """How many of the pending have all of their figures."""
        self._fresh: list[dict[str, Any]] = []
        """What no flush has given away yet."""
        self._held_from: int | None = None
        self._data_s = 0.0
        self._step = 0
        path = folder / f"rank_{info.rank:02d}_metrics.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _set_aside(path)
            self._file: TextIO | None = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror}; set AORTA_OUTPUT_DIR to a folder that can be"
            ) from error

    def start_step(self, step: int) -> None:
        """Begin to measure a step."""
        if len(self._pending) - self._read >= MOST_PENDING:
            self._read_all()
            self._write(forced=False)
            # What must not be missed is told by the next flush all the same.
            self._fresh = [line for line in self._fresh if "not_finite" in line][:MOST_PENDING]
        self._step, self._data_s = step, 0.0
        self._meter.start()

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Count the time inside as waiting for data, as often as a step needs."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._data_s += time.perf_counter() - begin

    def end_step(self, *, loss: Number, lr: float, grad_norm: Number | None, samples: int, tokens: int | None) -> None:
        """Take the figures of the step that now ends; samples and tokens are those of this rank alone."""
        line = self._begin_line(self._step)
        line["loss"] = None
        line["lr"] = lr
        if grad_norm is not None:
            line["grad_norm"] = None
        line["step_ms"] = None
        line["data_ms"] = 1000 * self._data_s
        line["_counts"] = samples, tokens
        line["samples_per_s"] = None
        if tokens is not None:
            line["tokens_per_s"] = None
        self._meter.end(loss, grad_norm)
        line.update(self._meter.memory())
        self._pending.append(line)

    def evaluated(self, step: int, held_out_loss: float) -> None:
        """Put the held-out loss onto the line of its step."""
        if not self._pending or self._pending[-1]["step"] != step:
            self._read_all()
            self._pending.append(self._begin_line(step))
            self._read = len(self._pending)
        self._pending[-1]["held_out_loss"] = held_out_loss

    def hold_from(self, step: int) -> None:
        """Write no line of this step or a later one until release: a figure of theirs comes later."""
        if self._held_from is None:
            self._held_from = step

    def release(self, comm_ms: dict[int, float]) -> None:
        """Take what was waited for, by step; the lines may be written now."""
        self._held_from = None
        for line in self._pending:
            if line["step"] in comm_ms:
                line["comm_ms"] = comm_ms[line["step"]]

    def flush(self) -> list[dict[str, Any]]:
        """Write the lines, waiting for the GPU; give the steps measured since the last flush, also those held back."""
        self._read_all()
        self._write(forced=False)
        fresh, self._fresh = self._fresh, []
        return fresh

    def close(self, *, failed: bool = False) -> None:
        """Write what is left and close; after a failure without waiting for a GPU that may never end its steps."""
        self._read_all(patient=not failed)
        self._write(forced=True)
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._trackers is not None:
            self._trackers.close(failed=failed)
            self._trackers = None

    def __enter__(self) -> Metrics:  # noqa: PYI034 - typing.Self is not there on Python 3.9
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    def _begin_line(self, step: int) -> dict[str, Any]:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        return {"time": now, **self._place, "step": step}

    def _read_all(self, *, patient: bool = True) -> None:
        unread = self._pending[self._read :]
        for line, reading in zip(unread, self._meter.read(patient=patient)):
            samples, tokens = line.pop("_counts")
            line.update({name: value for name, value in reading._asdict().items() if name in line})
            if reading.step_ms:
                line["samples_per_s"] = 1000 * samples / reading.step_ms
                if tokens is not None:
                    line["tokens_per_s"] = 1000 * tokens / reading.step_ms
            else:
                line.pop("samples_per_s")
                line.pop("tokens_per_s", None)
            _mark_not_finite(line)
            self._fresh.append(line)
        self._read = len(self._pending)

    def _write(self, *, forced: bool) -> None:
        held = None if forced else self._held_from
        count = next((n for n, line in enumerate(self._pending) if held is not None and line["step"] >= held), None)
        count = len(self._pending) if count is None else count
        ready, self._pending = self._pending[:count], self._pending[count:]
        self._read = len(self._pending)
        for line in ready:
            _mark_not_finite(line)
        if ready and self._file is not None:
            try:
                self._file.write("".join(map(_render_line, ready)))
                self._file.flush()
            except OSError as error:
                # Hours of training are worth more than their figures.
                print(f"warning: {self._file.name}: {error.strerror}; no more metrics are written", file=sys.stderr)
                self._file = None
        for line in ready:
            if self._trackers is not None:
                self._trackers.log(line)


def _mark_not_finite(line: dict[str, Any]) -> None:
    """Put null for what JSON cannot say, and say it beside."""
    odd = {name: str(value) for name, value in line.items() if isinstance(value, float) and not math.isfinite(value)}
    if "step_ms" in line:
        odd.update({name: "unread" for name in ("loss", "grad_norm", "step_ms") if line.get(name, 0) is None})
    if odd:
        line.update(dict.fromkeys(odd))
        line["not_finite"] = {**odd, **line.get("not_finite", {})}


def _render_line(line: dict[str, Any]) -> str:
    rounded = {name: float(f"{value:.{DIGITS}g}") if type(value) is float else value for name, value in line.items()}
    return json.dumps(rounded) + "\n"


def _set_aside(path: Path) -> None:
    """Keep what an earlier run left there under a name of its own: two runs are never mixed in one file."""
    if not path.exists() or not path.stat().st_size:
        return
    number = 1
    while (aside := path.with_suffix(f".{number}.jsonl")).exists():
        number += 1
    path.rename(aside)
