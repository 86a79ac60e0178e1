"""What `ps` would have shown on every machine of a cluster, looked at many times a second."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

WANTED_HZ = 50


class Leak(NamedTuple):
    """A secret that stood in the words of a process."""

    secret: str
    pid: int
    command: str


class PsSampler:
    """Samples the command lines of this machine and so of every node, whose processes are processes of this machine too."""

    def __init__(self, *secrets: str) -> None:
        self._secrets = [(secret, secret.encode()) for secret in secrets]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ps-sampler", daemon=True)
        self.leaks: set[Leak] = set()
        self.samples = 0
        self.longest_gap_s = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def rate_hz(self) -> float:
        """Samples a second over the whole time."""
        return self.samples / self.seconds if self.seconds else 0.0

    def _watch(self) -> None:
        begin = last = time.monotonic()
        while not self._stop.is_set():
            self._sample()
            now = time.monotonic()
            self.samples += 1
            self.longest_gap_s = max(self.longest_gap_s, now - last)
            self.seconds = now - begin
            last = now
            self._stop.wait(max(0.0, 1 / WANTED_HZ - (time.monotonic() - last)))

    def _sample(self) -> None:
        for name in [entry.name for entry in os.scandir("/proc")]:
            if not name[0].isdigit():
                continue
            try:
                descriptor = os.open(f"/proc/{name}/cmdline", os.O_RDONLY)
            except OSError:
                continue
            try:
                words = os.read(descriptor, 1 << 17)
            except OSError:
                continue
            finally:
                os.close(descriptor)
            for secret, wanted in self._secrets:
                if wanted in words:
                    command = words.replace(b"\0", b" ").decode(errors="replace").strip()
                    self.leaks.add(Leak(secret, int(name), command))
