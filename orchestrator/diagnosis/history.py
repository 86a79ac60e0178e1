"""Everything that is known of a run so far, folded from its events; the same event twice changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from orchestrator.diagnosis.events import AgentExit, Event
from orchestrator.values import Plan, RankExit

StopCause = Literal[
    "failure", "interrupt", "terminate", "kill", "time limit", "elsewhere", "lost", "not joined", "hang"
]
REBOOTED = "rebooted"
"""Why a node is lost that has started anew."""
VANISHED = "its run folder was removed"
NOTHING_LEFT = frozenset({REBOOTED, VANISHED})
"""Why a node is lost on which nothing of the run is left."""
STOP_CAUSES: tuple[StopCause, ...] = get_args(StopCause)


@dataclass
class History:
    """The state of a run; mutable, owned by the decider."""

    plan: Plan
    started: float
    heard: set[int] = field(default_factory=set)
    """Nodes of which anything is known: their supervisor spoke, or their link did not hold."""
    agents: set[int] = field(default_factory=set)
    seen: dict[int, int] = field(default_factory=dict)
    """rank -> the world size that it was given."""
    exits: dict[int, RankExit] = field(default_factory=dict)
    agent_exits: dict[int, AgentExit] = field(default_factory=dict)
    stopping: set[int] = field(default_factory=set)
    """Nodes that were told to stop."""
    finals: dict[int, dict[str, Any]] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    """node rank -> why it counts as lost."""
    suspect: set[int] = field(default_factory=set)
    supervisors_lost: set[int] = field(default_factory=set)
    stop_cause: StopCause | None = None
    stop_time: float | None = None
    stop_node: int | None = None
    """The node that made us stop."""
    stop_detail: str = ""
    hang: Mapping[str, Any] | None = None
    """What the latest report of a hang said, in the words of diagnosis.case.Odd."""

    @property
    def all_seen(self) -> bool:
        """Every planned rank was seen running."""
        return len(self.seen) == self.plan.world_size

    def note_stop(self, cause: StopCause, time: float, node_rank: int | None, detail: str) -> None:
        """Take down why the run was stopped; the first reason stays."""
        if self.stop_cause is None:
            self.stop_cause, self.stop_time, self.stop_detail = cause, time, detail
            self.stop_node = node_rank if node_rank is not None and node_rank >= 0 else None

    @property
    def over(self) -> bool:
        """Every node has said its last word, or is lost."""
        return all(node.node_rank in self.finals or node.node_rank in self.lost for node in self.plan.nodes)

    def missing_nodes(self) -> list[str]:
        """Name the nodes of which a rank was never seen."""
        return [node.node.name for node in self.plan.nodes if any(rank not in self.seen for rank in node.ranks)]

    def take(self, event: Event) -> bool:
        """Fold one event of a node in; False when it was known."""
        node_rank, data = event.node_rank, event.data
        if node_rank >= 0 and event.kind != "stop":
            self.heard.add(node_rank)
        if event.kind == "stopping":
            self.stopping.add(node_rank)
        if event.kind == "hang":
            self.hang = dict(data)
        if event.kind == "stop":
            self.note_stop(data["cause"], event.time, node_rank, str(data.get("detail", "")))
        if event.kind == "agent":
            known = node_rank in self.agents
            self.agents.add(node_rank)
            return not known
        if event.kind == "rank":
            rank = int(data["rank"])
            known = rank in self.seen
            self.seen[rank] = int(data["world_size"])
            return not known
        if event.kind == "rank_exit":
            return self._take_rank_exit(event)
        if event.kind == "agent_exit":
            return self._take_agent_exit(event)
        if event.kind == "final":
            known = node_rank in self.finals
            self.finals.setdefault(node_rank, dict(data))
            return not known
        return event.kind != "stop"

    def _take_agent_exit(self, event: Event) -> bool:
        data = event.data
        if event.node_rank in self.agent_exits:
            return False
        self.agent_exits[event.node_rank] = AgentExit(
            node_rank=event.node_rank,
            time=event.time,
            code=data.get("code"),
            signal=data.get("signal"),
            after_stop=bool(data.get("after_stop")) or self.stop_cause is not None,
            error=str(data.get("error", "")),
        )
        return True

    def _take_rank_exit(self, event: Event) -> bool:
        data, rank = event.data, int(event.data["rank"])
        if rank in self.exits:
            return False
        self.exits[rank] = RankExit(
            node_rank=event.node_rank,
            rank=rank,
            local_rank=int(data["local_rank"]),
            time=event.time,
            code=data.get("code"),
            signal=data.get("signal"),
            after_stop=bool(data.get("after_stop")),
            disk_full=bool(data.get("disk_full")),
            pid=data.get("pid"),
            oom_kills=int(data.get("oom_kills") or 0),
        )
        return True
