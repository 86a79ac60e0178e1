"""Everything that is known of a run so far, folded from its events; the same event twice changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, get_args

from orchestrator.diagnosis.events import AgentExit, Event
from orchestrator.light_dataclass import dataclass
from orchestrator.values import NodePlan, Plan, RankExit

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
    commands: set[int] = field(default_factory=set)
    """Nodes whose agent is a command that has started: whether it will ever show a rank is not known."""
    stand_ins: set[int] = field(default_factory=set)
    """Ranks for which such a command stands: the first of its node, until a real one is seen there."""
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
        """Every planned rank was seen running, or the command that may be it."""
        return len(self.seen) == self.plan.world_size or (
            bool(self.commands)
            and all(
                node.node_rank in self.commands or all(rank in self.seen for rank in node.ranks)
                for node in self.plan.nodes
            )
        )

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
        return [node.node.name for node in self.plan.nodes if self._lacks_ranks(node)]

    def _lacks_ranks(self, node: NodePlan) -> bool:
        return node.node_rank not in self.commands and any(rank not in self.seen for rank in node.ranks)

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
            return self._take_agent(event)
        if event.kind == "rank":
            return self._take_rank(event)
        if event.kind == "rank_exit":
            return self._take_rank_exit(event)
        if event.kind == "agent_exit":
            return self._take_agent_exit(event)
        if event.kind == "final":
            known = node_rank in self.finals
            self.finals.setdefault(node_rank, dict(data))
            return not known
        return event.kind != "stop"

    def _take_agent(self, event: Event) -> bool:
        if event.node_rank in self.agents:
            return False
        self.agents.add(event.node_rank)
        if "stands_for" in event.data:
            self.commands.add(event.node_rank)
            if not any(rank in self.seen for rank in self.plan.nodes[event.node_rank].ranks):
                self.stand_ins.add(int(event.data["stands_for"]))
                self.seen[int(event.data["stands_for"])] = self.plan.world_size
        return True

    def _take_rank(self, event: Event) -> bool:
        for stand_in in self.stand_ins & set(self.plan.nodes[event.node_rank].ranks):
            self.stand_ins.discard(stand_in)
            del self.seen[stand_in]
        rank = int(event.data["rank"])
        known = rank in self.seen
        self.seen[rank] = int(event.data["world_size"])
        return not known

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
        for rank in self.stand_ins & set(self.plan.nodes[event.node_rank].ranks) - set(self.exits):
            own = {"rank": rank, "local_rank": 0}
            self._take_rank_exit(
                Event(kind="rank_exit", time=event.time, node_rank=event.node_rank, data={**data, **own})
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
