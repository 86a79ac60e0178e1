"""Has every node write down what it knows at the moment a run breaks: a minute later it knows it no more."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.phases.answers import Asked, ask_ahead, follow_answers, plain
from orchestrator.phases.hang.dumps import take_dumps, write_dumps
from orchestrator.phases.record import write_json

if TYPE_CHECKING:
    from orchestrator.phases.reader import NodeReader
    from orchestrator.plan.paths import ExperimentPaths

EVIDENCE_S = 20.0
"""A node gathers for no longer than this; where a driver or a file system hangs, it says so."""


def render_kernel(lines: Iterable[tuple[float, str]]) -> str:
    """Render what a kernel said, one line each, with how many seconds before it was asked."""
    return "".join(f"-{age_s:.1f}s {' '.join(str(text).split())}\n" for age_s, text in lines)


class Gathering:
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
        asked = ask_ahead(self._readers, {"op": "evidence"})
        self._thread = threading.Thread(target=self._take, args=(asked,), name="evidence", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until everything is here that can still come."""
        if self._thread is not None:
            self._thread.join(EVIDENCE_S)

    def _take(self, asked: Asked) -> None:
        # A silent link may come back with what the node had gathered at the right moment.
        for node_rank, answer in follow_answers(asked, EVIDENCE_S, EVIDENCE_S):
            told = plain(answer)
            self._keep(node_rank, told, take_dumps({node_rank: told.pop("flight", None) or {}}, math.inf))

    def _keep(self, node_rank: int, told: Mapping[str, Any], dumps: Mapping[int, tuple[str, bytes]]) -> None:
        with contextlib.suppress(OSError):
            self._paths.diagnosis.mkdir(exist_ok=True)
            write_dumps(self._paths.flight, dumps)
            write_json(self._paths.node_evidence(node_rank), told)
            lines = render_kernel(told.get("kernel") or ())
            if lines:
                self._paths.kernel_log(node_rank).write_text(lines, "utf-8")
        self.told[node_rank] = told
