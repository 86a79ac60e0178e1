"""What the launch host asks a pump beside the run itself, and how the answers come back without holding anything up."""

from __future__ import annotations

import sys
import time

from orchestrator.node.aside import Aside
from orchestrator.node.fastjson import loads

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

    from orchestrator.node.report import ReportJob

    Facts = Dict[str, Any]
    Answer = Tuple[Facts, bytes]
    """Header and body of a frame."""


QUESTIONS: Dict[str, Tuple[str, float]] = {
    "activity": ("measure", 15.0),
    "evidence": ("gather", 15.0),
    "flight": ("take_dumps", 15.0),
    "ras": ("ask", 10.0),
    "sockets": ("list_sockets", 5.0),
    "stacks": ("take_stacks", 15.0),
}
"""What is found out, by the module of that name: its function, and how long it may take."""

EXPECTED_S = 2.0
"""Who hears that a rank failed asks at once what the node knows; a node that is over by then has to wait for that."""


class Questions:
    """The questions that wait for their answers."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._reports: List[Tuple[Any, ReportJob]] = []
        self._works: List[Tuple[Facts, Aside]] = []
        self._expected_until: Optional[float] = None

    @property
    def waiting(self) -> bool:
        """Somebody waits for an answer that takes a while, or is about to ask."""
        return bool(self._works) or time.monotonic() < (self._expected_until or 0.0)

    def note(self, event: Facts) -> None:
        """Take an event that is told just now: a failure will be asked about."""
        failed = event["ev"] in ("rank_exit", "agent_exit") and bool(event.get("code") or event.get("signal"))
        if failed and not event.get("after_stop") and self._expected_until is None:
            self._expected_until = time.monotonic() + EXPECTED_S

    def take(self, order: Facts) -> bool:
        """Begin to find out what an order asks; False when it asks nothing."""
        op = str(order.get("op"))
        if op == "report":
            from orchestrator.node import report  # noqa: PLC0415 - regular expressions, and seldom asked

            self._reports.append((order.get("id"), report.ReportJob(self._folder)))
        elif op in QUESTIONS:
            function, limit_s = QUESTIONS[op]
            if op == "evidence":
                self._expected_until = 0.0
            aside = Aside(lambda: find_out(op, function, self._folder, order), limit_s)
            self._works.append(({"t": "answer", "op": op, "id": order.get("id")}, aside))
        else:
            return False
        return True

    def answers(self) -> Iterator[Answer]:
        """Give the answers that are ready."""
        for number, job in self._reports[:]:
            report = job.done()
            if report is not None:
                self._reports.remove((number, job))
                yield {"t": "report", "id": number, "report": report}, b""
        for header, aside in self._works[:]:
            found = aside.done()
            if found is not None:
                self._works.remove((header, aside))
                yield header, found if _is_whole(found) else b'{"error": "it broke off"}'

    def close(self) -> None:
        """Find out nothing more."""
        for _, job in self._reports:
            job.close()
        for _, aside in self._works:
            aside.close()


def find_out(op: str, function: str, folder: str, order: Facts) -> Facts:
    """Find out what an order asks; what that needs is loaded only now, and not into the pump itself."""
    __import__("orchestrator.node." + op)
    work: Callable[[str, Facts], Facts] = getattr(sys.modules["orchestrator.node." + op], function)
    return work(folder, order)


def _is_whole(found: bytes) -> bool:
    try:
        loads(found)
    except ValueError:
        return False
    return True
