"""Sends a signal to the ranks of a run, through its controller or straight to the nodes; nothing is stopped by us."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.phases.connect import connect_each
from orchestrator.phases.control import ask_controller
from orchestrator.transport.fanout import try_each
from orchestrator.values import Notified

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.phases.known_runs import KnownRun
    from orchestrator.settings import Settings

ASK_S = 20.0


def parse_signal(word: str) -> int:
    """Read a signal as people write it: USR1, SIGUSR1 or 10.

    Raises:
        UsageError: there is no such signal.
    """
    text = word.upper()
    name = text if text.startswith("SIG") else f"SIG{text}"
    if name in signal.Signals.__members__:
        return int(signal.Signals[name])
    if text.isdigit() and int(text) in set(signal.Signals):
        return int(text)
    raise UsageError(what=f"{word} is no signal", where="--signal", remedy="write for example USR1, TERM or 10")


def notify_ranks(known: KnownRun, settings: Settings, number: int) -> list[Notified]:
    """Signal every rank that runs; a node that cannot be asked is reported, not raised."""
    answer = ask_controller(known, {"op": "signal", "signal": number}, ASK_S)
    if answer is not None and answer["nodes"]:
        return [_notified(one["node_rank"], one["node"], one) for one in answer["nodes"]]
    links, errors = connect_each(known.nodes, settings)

    def ask(place: int) -> dict[str, Any]:
        link = links[place]
        try:
            return link.call("notify", {"run_id": known.run_id, "node_rank": place, "signal": number}, ASK_S)
        finally:
            link.close()

    answers, failed = try_each(ask, sorted(links), settings.fanout)
    told = [_notified(place, known.nodes[place].name, one) for place, one in answers.items()]
    told += [
        Notified(node_rank=place, node=known.nodes[place].name, error=error.what)
        for place, error in {**errors, **failed}.items()
    ]
    return sorted(told, key=lambda one: one.node_rank)


def _notified(node_rank: int, name: str, answer: Mapping[str, Any]) -> Notified:
    return Notified(
        node_rank=node_rank,
        node=name,
        ranks=tuple(answer.get("ranks", ())),
        error=str(answer.get("error", "")),
    )
