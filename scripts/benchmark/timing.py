"""Running one command and knowing what it cost; and what figures of several rounds say together."""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TICKS = os.sysconf("SC_CLK_TCK")
# The clock starts in the last moment before the command itself: what prepares its surroundings is not its own.
STAMP = 'printf %s "$EPOCHREALTIME" >"$0"; exec "$@"'


class BenchError(RuntimeError):
    """A measurement could not be made; nothing is left out in silence."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A command that has ended, and what it cost."""

    words: tuple[str, ...]
    exit_code: int
    began: float
    """Seconds since the epoch, in the moment before the command."""
    seconds: float
    cpu_s: float
    """Of the command and of every child that it has waited for."""
    peak_mib: float
    """Of the command's own process."""
    stdout: str
    stderr: str

    def check(self, expected: int = 0) -> Self:
        """Go on only when it ended as it should."""
        if self.exit_code != expected:
            shown = f"{self.stdout[-2000:]}\n{self.stderr[-4000:]}"
            raise BenchError(f"exit code {self.exit_code}: {shlex.join(self.words)}\n{shown}")
        return self


class Running:
    """A command that runs, in a process group of its own; its output goes to files."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        wrap: Callable[[list[str]], list[str]],
        cwd: Path,
        env: Mapping[str, str],
    ) -> None:
        self.words = tuple(words)
        self._folder = tempfile.TemporaryDirectory(prefix="aorta-bench-")
        self._out, self._err, self._stamp = (Path(self._folder.name, name) for name in ("out", "err", "stamp"))
        stamped = ["bash", "-c", STAMP, str(self._stamp), *words]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                wrap(stamped),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        self._peak_mib = 0.0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        # Whoever ends the benchmark ends it.
        atexit.register(self.kill)

    @property
    def pid(self) -> int:
        """The command's process: what prepared its surroundings has become it."""
        return self.process.pid

    @property
    def began(self) -> float:
        """Seconds since the epoch, in the moment before the command; waits for it."""
        end = time.monotonic() + 10
        while not (self._stamp.exists() and self._stamp.stat().st_size):
            if time.monotonic() > end or self.process.poll() is not None:
                raise BenchError(f"did not start: {shlex.join(self.words)}\n{self.stderr}")
            time.sleep(0.002)
        return float(self._stamp.read_text())

    @property
    def stdout(self) -> str:
        """What it has written so far."""
        return self._out.read_bytes().decode(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has said so far."""
        return self._err.read_bytes().decode(errors="replace")

    def wait(self, timeout_s: float = 120) -> Ran:
        """Wait for its end; one that does not come in time is killed, and the measurement fails."""
        late = threading.Timer(timeout_s, self.signal, (signal.SIGKILL,))
        late.daemon = True  # whoever ends the benchmark does not wait for it
        late.start()
        try:
            _, status, usage = os.wait4(self.process.pid, 0)
            ended, in_time = time.time(), late.is_alive()
        finally:
            late.cancel()
        self._end_watch()
        self.process.returncode = os.waitstatus_to_exitcode(status)
        began = float(self._stamp.read_text() or "nan") if self._stamp.exists() else float("nan")
        ran = Ran(
            words=self.words,
            exit_code=self.process.returncode,
            began=began,
            seconds=ended - began,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_mib=self._peak_mib,
            stdout=self.stdout,
            stderr=self.stderr,
        )
        self._folder.cleanup()
        if not in_time:
            raise BenchError(f"still running after {timeout_s:g} s: {shlex.join(self.words)}\n{ran.stderr[-4000:]}")
        return ran

    def signal(self, number: int) -> None:
        """Signal it and what it has started in its process group."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return

    def kill(self) -> None:
        """End it, whatever it does; no measurement."""
        if self.process.returncode is None:
            self.signal(signal.SIGKILL)
            self.process.wait()
            self._end_watch()
            self._folder.cleanup()

    def _end_watch(self) -> None:
        atexit.unregister(self.kill)
        self._ended.set()
        self._sampler.join()

    def read_cpu_s(self) -> float:
        """Seconds of processor that its own process has used so far, children not counted."""
        return read_cpu_s(self.pid)

    def read_peak_mib(self) -> float:
        """The most memory that its own process has had so far."""
        self._peak_mib = max(self._peak_mib, read_peak_mib(self.pid))
        return self._peak_mib

    def _sample(self) -> None:
        # A process that is gone has no peak any more; a kernel's own ru_maxrss counts the parent's too.
        while not self._ended.wait(0.05):
            self.read_peak_mib()


def read_cpu_s(pid: int, proc: str = "/proc") -> float:
    """Seconds of processor of one process; 0 when it is gone."""
    try:
        fields = Path(proc, str(pid), "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def read_peak_mib(pid: int, proc: str = "/proc") -> float:
    """The most memory that a process has had; 0 when it is gone."""
    return read_kib(pid, "VmHWM", proc) / 1024


def read_kib(pid: int, name: str, proc: str = "/proc") -> int:
    """A line of a process's status, in KiB; 0 when it is gone."""
    try:
        lines = Path(proc, str(pid), "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def fold_ratios(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios, each of two figures of one round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
