"""Has every node write down what it knows at the moment a run breaks: a minute later it knows it no more."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.phases.record import write_json

if TYPE_CHECKING:
    from orchestrator.phases.reader import NodeReader
    from orchestrator.plan.paths import ExperimentPaths

EVIDENCE_S = 20.0
"""A node gathers for no longer than this; where a driver or a file system hangs, it says so."""
POLL_S = 0.02


def render_kernel(lines: Iterable[tuple[float, str]]) -> str:
    """Render what a kernel said, one line each, with how many seconds before it was asked."""
    return "".join(f"-{age_s:.1f}s {' '.join(str(text).split())}\n" for age_s, text in lines)


class Evidence:
    """What the nodes wrote down, by node rank; empty until the run breaks."""

    def __init__(self, paths: ExperimentPaths, readers: Sequence[NodeReader]) -> None:
        self.told: dict[int, Mapping[str, Any]] = {}
        self._paths = paths
        self._readers = readers
        self._thread: threading.Thread | None = None

    def gather(self) -> None:
        """Ask every node, once; the orders are sent when this returns, the answers are taken by a thread."""
        if self._thread is not None:
            return
        asked = {reader: reader.ask_ahead({"op": "evidence"}) for reader in self._readers if reader.is_alive()}
        self._thread = threading.Thread(target=self._take, args=(asked,), name="evidence", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until everything is here that can still come."""
        if self._thread is not None:
            self._thread.join(EVIDENCE_S)

    def _take(self, asked: dict[NodeReader, queue.SimpleQueue[Mapping[str, Any]]]) -> None:
        end = time.monotonic() + EVIDENCE_S
        while asked and time.monotonic() < end:
            for reader, answer in list(asked.items()):
                # In this order: what it said last is there once its reader has ended.
                ended = not reader.is_alive()
                try:
                    self._keep(reader.node.node_rank, answer.get_nowait())
                except queue.Empty:
                    if not ended:
                        continue
                asked.pop(reader)
            time.sleep(POLL_S)

    def _keep(self, node_rank: int, answer: Mapping[str, Any]) -> None:
        told = {name: value for name, value in answer.items() if name not in ("t", "op", "id", "n")}
        with contextlib.suppress(OSError):
            self._paths.diagnosis.mkdir(exist_ok=True)
            write_json(self._paths.node_evidence(node_rank), told)
            lines = render_kernel(told.get("kernel") or ())
            if lines:
                self._paths.kernel_log(node_rank).write_text(lines, "utf-8")
        self.told[node_rank] = told
