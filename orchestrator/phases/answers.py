"""Asks every node the same at the same moment, and takes the answers as they come."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.phases.reader import NodeReader

Answer = Mapping[str, Any]
Asked = Mapping["NodeReader", "queue.SimpleQueue[Answer]"]
SUSPECT_S = 3.0
"""A node whose link has fallen silent is waited for no longer: what it knows comes late, if it comes."""
POLL_S = 0.02


def ask_nodes(readers: Sequence[NodeReader], order: Answer, timeout_s: float) -> dict[int, Answer]:
    """Give an order to every node at the same moment; give the answers that came in time, by node rank."""
    return take_answers(ask_ahead(readers, order), timeout_s)


def ask_ahead(readers: Sequence[NodeReader], order: Answer) -> Asked:
    """Give an order to every node that can still be asked."""
    return {reader: reader.ask_ahead(order) for reader in readers if reader.is_alive()}


def take_answers(asked: Asked, timeout_s: float) -> dict[int, Answer]:
    """Wait for answers that were asked for ahead."""
    return dict(follow_answers(asked, timeout_s, min(timeout_s, SUSPECT_S)))


def follow_answers(asked: Asked, timeout_s: float, suspect_s: float) -> Iterator[tuple[int, Answer]]:
    """Give each answer as it comes, by node rank, until nobody is left or the time is over."""
    began, waiting = time.monotonic(), dict(asked)
    while waiting:
        waited_s = time.monotonic() - began
        for reader, answer in list(waiting.items()):
            # In this order: what it said last is there once its reader has ended.
            ended = not reader.is_alive()
            late = waited_s >= (suspect_s if reader.suspect else timeout_s)
            try:
                yield reader.node.node_rank, answer.get_nowait()
            except queue.Empty:
                if not ended and not late:
                    continue
            waiting.pop(reader)
        if waiting:
            time.sleep(POLL_S)


def plain(answer: Answer) -> dict[str, Any]:
    """Leave out what only carried the answer here."""
    return {name: value for name, value in answer.items() if name not in ("t", "op", "id", "n")}
