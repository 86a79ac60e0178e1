"""Finds out how a run stands: from its controller, straight from its nodes, or, when it is over, from its record."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AortaError, UsageError
from orchestrator.phases.connect import close_links, connect_each
from orchestrator.phases.control import ask_controller, has_controller, name_controller
from orchestrator.phases.loggaps import read_gaps
from orchestrator.phases.notes import latest_note
from orchestrator.phases.saved_run import read_saved_run
from orchestrator.run_status import NodeStatus, RunStatus
from orchestrator.transport.fanout import try_each
from orchestrator.values import ENDED, UNFINISHED

if TYPE_CHECKING:
    from orchestrator.phases.known_runs import KnownRun
    from orchestrator.phases.saved_run import SavedRun
    from orchestrator.settings import Settings
    from orchestrator.transport import Link
    from orchestrator.values import Node

CONTROLLER_S = 12.0
"""More than it waits for its nodes."""
REPORT_S = 15.0
"""A node's own limit for a driver that hangs is 5 s."""


class Asker:
    """Asks the nodes of a run; keeps its links, because a view that is drawn anew asks again."""

    def __init__(self, nodes: Sequence[Node], settings: Settings, run_id: str) -> None:
        self._nodes = nodes
        self._settings = settings
        self._run_id = run_id
        self._links: dict[int, Link] = {}

    def ask(self) -> tuple[NodeStatus, ...]:
        """Ask every node at the same time."""
        missing = [place for place in range(len(self._nodes)) if place not in self._links]
        opened, failed = connect_each([self._nodes[place] for place in missing], self._settings)
        self._links |= {missing[at]: link for at, link in opened.items()}
        errors: dict[int, AortaError] = {missing[at]: error for at, error in failed.items()}
        told, broken = try_each(self._ask_one, sorted(self._links), self._settings.fanout)
        for place, error in broken.items():
            errors[place] = error
            self._links.pop(place).close()
        return tuple(
            NodeStatus(
                node_rank=place,
                node=node.name,
                contact="ok" if place in told else "unreachable",
                error="" if place in told else errors[place].what,
                report=told[place] if place in told and told[place].get("found", True) else {},
                absent=place in told and not told[place].get("found", True),
            )
            for place, node in enumerate(self._nodes)
        )

    def _ask_one(self, place: int) -> dict[str, Any]:
        return self._links[place].call("status", {"run_id": self._run_id, "node_rank": place}, REPORT_S)

    def close(self) -> None:
        """Close the links."""
        close_links(self._links.values())


def gather_status(run: KnownRun, asker: Asker) -> RunStatus:
    """Find out how a run stands now; one that is over is told from its record, and nobody is asked."""
    saved = _read_record(run)
    if not run.live:
        return _status(run, saved, None, ())
    answer = ask_controller(run, {"op": "report"}, CONTROLLER_S)
    if answer is not None and answer.get("nodes"):
        nodes = tuple(_read_node(one) for one in answer["nodes"])
        return _status(run, saved, answer, nodes, str(answer["state"]))
    if answer is not None:
        # Nothing was started yet: the nodes know nothing of it.
        return _status(run, saved, answer, (), str(answer["state"]))
    silent = {"mode": "silent", "who": name_controller(run.run_id)} if has_controller(run.run_id) else None
    return _status(run, saved, silent, asker.ask())


def _read_record(run: KnownRun) -> SavedRun | None:
    try:
        return read_saved_run(run)
    except UsageError:
        return None  # the folder was removed: the nodes are known all the same


def _read_node(answer: Mapping[str, Any]) -> NodeStatus:
    report = {name: value for name, value in answer.items() if name not in ("node", "contact", "error")}
    if "supervisor" not in report:
        # The last word of a node that has ended: there "gpus" are those that hold more than before.
        report |= {"ended": True, "gpus_held": report.get("gpus") or [], "gpus": []}
    return NodeStatus(
        node_rank=int(answer["node_rank"]),
        node=str(answer["node"]),
        contact=answer.get("contact", "ok"),
        error=str(answer.get("error", "")),
        report=report if "state" in report else {},
    )


def _status(
    run: KnownRun,
    saved: SavedRun | None,
    controller: Mapping[str, Any] | None,
    nodes: tuple[NodeStatus, ...],
    state: str = "",
) -> RunStatus:
    recorded = saved.state if saved is not None else ""
    verdict = saved.verdict if saved is not None else None
    return RunStatus(
        run_id=run.run_id,
        experiment=run.experiment,
        state=state or (recorded if verdict is not None or not nodes else fold_states(nodes, recorded)),
        live=run.live,
        age_s=_age_s(saved),
        controller=controller,
        nodes=nodes,
        plan=saved.plan if saved is not None else None,
        verdict=verdict,
        note=latest_note(saved.paths.root) if saved is not None else "",
        gaps=read_gaps(saved.paths.gaps_jsonl) if saved is not None else {},
        unstarted=saved is not None and controller is None and _is_unstarted(saved),
    )


def _is_unstarted(saved: SavedRun) -> bool:
    host = (saved.document.get("launch_host") or {}).get("hostname")
    # A launcher on another machine with this HOME may live, where the file system knows no locks.
    return saved.went is None and saved.state != "not started" and host == platform.node()


def fold_states(nodes: Sequence[NodeStatus], recorded: str) -> str:
    """Say the state of a run by those of its nodes: they are the authority."""
    told = [node for node in nodes if node.report]
    living = {str(node.report["state"]) for node in told if not node.ended}
    ended = {str(node.report["state"]) for node in told if node.ended}
    found = [state for state in reversed(UNFINISHED) if state in living] + [state for state in ENDED if state in ended]
    return next(iter(found), recorded)


def _age_s(saved: SavedRun | None) -> float | None:
    timings = saved.document.get("timings", {}) if saved is not None else {}
    try:
        begun = datetime.fromisoformat(timings["launched"])
        ended = datetime.fromisoformat(timings["ended"]) if "ended" in timings else datetime.now(UTC)
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, (ended - begun).total_seconds())
