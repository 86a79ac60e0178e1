"""Sees to it that what the nodes hold by now is here, where no controller was there to fetch it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AortaError
from orchestrator.phases.attend import ensure_controller
from orchestrator.phases.control import ask_controller, has_controller
from orchestrator.phases.logview import size_of

if TYPE_CHECKING:
    from orchestrator.output.console import Talk
    from orchestrator.phases.known_runs import KnownRun
    from orchestrator.phases.logview import LogFile
    from orchestrator.settings import Settings

FETCH_S = 60.0
"""A node that has not answered by then is not waited for; what it holds comes when it comes."""
ASK_S = 10.0
POLL_S = 0.1


def fetch_missing(known: KnownRun, settings: Settings, talk: Talk, files: Sequence[LogFile]) -> None:
    """Have a controller again for a run that has none, and wait for what it fetches."""
    try:
        if not ensure_controller(known, settings, talk):
            return
    except AortaError as error:
        talk.warn(f"what is not here yet cannot be fetched: {error}")
        return
    with talk.waiting("fetching what is not here yet"):
        end = time.monotonic() + FETCH_S
        while not (lengths := ask_lengths(known)) and has_controller(known.run_id) and time.monotonic() < end:
            time.sleep(POLL_S)
        while missing(files, lengths) and has_controller(known.run_id) and time.monotonic() < end:
            time.sleep(POLL_S)


def ask_lengths(known: KnownRun) -> dict[int, dict[str, int]]:
    """Ask how long each log file is on its node, by node rank; empty until every node has answered."""
    answer = ask_controller(known, {"op": "lengths"}, ASK_S) or {}
    nodes: Sequence[Mapping[str, Any]] = answer.get("nodes", ())
    if any("error" in node for node in nodes):
        return {}
    return {node["node_rank"]: node["lengths"] for node in nodes}


def missing(files: Sequence[LogFile], lengths: Mapping[int, Mapping[str, int]]) -> bool:
    """Tell whether a file here is shorter than on its node."""
    return any(size_of(file.path) < lengths.get(file.node_rank, {}).get(file.name, 0) for file in files)
