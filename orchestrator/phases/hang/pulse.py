"""Feels the pulse of a run: when a rank last wrote something, and which step its last lines tell."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from orchestrator.node.progress import parse_step, read_lines

if TYPE_CHECKING:
    from orchestrator.diagnosis.hang.watch import HangWatch
    from orchestrator.phases.logstore import Show

TAIL = 2048
"""Bytes of what came last that are searched for a step."""
MOST_RANKS = 64
"""Ranks step together: the first of them tell enough."""
_ENDS = re.compile(rb"[\r\n]")
_OWN_LOG = re.compile(rb"\[[EWIF]\d{4} [\d:.]+ \w+\.cpp:\d+\]|\bNCCL (?:INFO|WARN|TRACE)\b")
"""What torch's and NCCL's own machinery logs: it speaks when it is asked for a dump, and while all ranks wait."""


def is_own_log(data: bytes) -> bool:
    """Tell whether a library's machinery wrote all of these lines, which is no sign of progress."""
    lines = [line for line in data[-TAIL:].splitlines() if line.strip()]
    return bool(lines) and all(_OWN_LOG.search(line) for line in lines)


class Pulse:
    """Takes every byte that comes, on its way to the screen."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._lock = threading.Lock()
        self._last = 0.0
        self._tails: dict[tuple[int, str], bytes] = {}

    def show(self, node_rank: int, rank: int | None, stream: str, data: bytes) -> None:
        """Note that something came, and pass it on."""
        if rank is not None and (stream == "out" or not is_own_log(data)):
            with self._lock:
                self._last = time.monotonic()
                if rank < MOST_RANKS:
                    self._tails[rank, stream] = (self._tails.get((rank, stream), b"") + data[-TAIL:])[-TAIL:]
        self._show(node_rank, rank, stream, data)

    def tell(self, watch: HangWatch) -> None:
        """Tell what has come since we were asked last."""
        with self._lock:
            last, self._last = self._last, 0.0
            whole = {key: tail for key, tail in self._tails.items() if _ENDS.search(tail)}
            for key, tail in whole.items():
                # A line that is still being written may hold half a number.
                self._tails[key] = _ENDS.split(tail)[-1]
        if last:
            watch.note_output(last)
        for (rank, stream), tail in whole.items():
            step = parse_step(read_lines(tail[: tail.rfind(_ENDS.findall(tail)[-1]) + 1]))
            if step is not None:
                # A bar on stderr and a line on stdout may count different things.
                watch.note_step(last, 2 * rank + (stream == "err"), step)
