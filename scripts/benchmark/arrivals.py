"""When the bytes of a growing file were there, and how late its lines came."""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from .timing import BenchError

STAMP = re.compile(rb"at +(\d+\.\d+) [^\n]*\n")
LOOK_S = 0.02


class Arrivals:
    """Looks at the sizes of files all the time; lags are true to within LOOK_S."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._seen: dict[Path, tuple[list[int], list[float]]] = {path: ([], []) for path in paths}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def wait_for(self, sizes: Sequence[int], deadline_s: float) -> float:
        """Wait until every file has its size, and give the moment in which the last one had."""
        end = time.monotonic() + deadline_s
        while any(self._size(path) < size for path, size in zip(self.paths, sizes, strict=True)):
            if time.monotonic() > end:
                short = sum(max(0, size - self._size(path)) for path, size in zip(self.paths, sizes, strict=True))
                raise BenchError(f"{short} bytes did not come within {deadline_s:g} s")
            time.sleep(LOOK_S)
        return max(self._moment(path, size) for path, size in zip(self.paths, sizes, strict=True))

    def read_lags(self, path: Path) -> list[float]:
        """How long after it was written each line that tells the time was in the file."""
        content = path.read_bytes()
        return [self._moment(path, found.end()) - float(found[1]) for found in STAMP.finditer(content)]

    def _size(self, path: Path) -> int:
        sizes = self._seen[path][0]
        return sizes[-1] if sizes else 0

    def _moment(self, path: Path, size: int) -> float:
        sizes, moments = self._seen[path]
        return moments[bisect_left(sizes, size)]

    def _look(self) -> None:
        while not self._ended.is_set():
            for path, (sizes, moments) in self._seen.items():
                try:
                    size = path.stat().st_size
                except OSError:
                    continue
                if not sizes or size > sizes[-1]:
                    moments.append(time.time())
                    sizes.append(size)
            time.sleep(LOOK_S)
