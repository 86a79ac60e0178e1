"""How a run stands at one moment, as far as it could be found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from orchestrator.light_dataclass import dataclass
from orchestrator.values import Plan, Verdict

Contact = Literal["ok", "suspect", "lost", "unreachable"]


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """How one node of a run stands."""

    node_rank: int
    node: str
    contact: Contact
    error: str = ""
    """Why it could not be asked."""
    report: Mapping[str, Any]
    """What it told of itself; empty when it could not be asked, or has nothing of the run."""
    absent: bool = False
    """It answers, and nothing of the run is there: not yet, or not any more."""

    @property
    def word(self) -> str:
        """Its state in one word or two: how it is reached, then how its supervisor is, then what that says."""
        supervisor = self.report.get("supervisor") or {}
        if self.contact != "ok" or self.error:
            return self.contact if self.contact != "ok" else "no answer"
        if self.absent:
            return "nothing here"
        if self.report.get("rebooted"):
            return "rebooted"
        if supervisor.get("suspended"):
            return "suspended"
        if self.supervisor_gone:
            return "supervisor gone"
        return str(self.report.get("state", ""))

    @property
    def ended(self) -> bool:
        """It has said its last word."""
        return bool(self.report.get("ended", "supervisor" not in self.report and "state" in self.report))

    @property
    def supervisor_gone(self) -> bool:
        """Its supervisor is no more, and has not said its last word."""
        supervisor = self.report.get("supervisor")
        return supervisor is not None and not supervisor["alive"] and not self.ended


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """How a run stands."""

    run_id: str
    experiment: str
    state: str
    live: bool
    """It has not been seen to its end."""
    age_s: float | None = None
    """Since its launch; of one that has ended, how long it took."""
    controller: Mapping[str, Any] | None = None
    """pid and mode of the process that watches it; None: there is none."""
    nodes: tuple[NodeStatus, ...] = ()
    """Empty where the record tells enough, and nobody was asked."""
    plan: Plan | None = None
    verdict: Verdict | None = None
    note: str = ""
    gaps: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """From where to where log files miss bytes that the nodes dropped before they could be fetched."""
    unstarted: bool = False
    """No node was ever told to start, and no process of this machine is about to do it."""

    @property
    def unasked(self) -> bool:
        """A node of it could not be asked."""
        return any(node.contact != "ok" or node.error for node in self.nodes)

    @property
    def needs_controller(self) -> bool:
        """Nobody watches it, and something happened that has to be dealt with."""
        if self.controller is not None or not self.live or self.verdict is not None:
            return False
        if self.unstarted or self.plan is None:
            # Without its plan nobody could take it over; kill still finds its nodes.
            return self.unstarted
        told = [node for node in self.nodes if node.report]
        troubled = any(
            node.report.get("rebooted") or node.supervisor_gone or (node.ended and node.report["state"] != "succeeded")
            for node in told
        )
        return troubled or (bool(told) and len(told) == len(self.nodes) and all(node.ended for node in told))
