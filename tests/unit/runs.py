"""A made-up run for tests of what decides and judges: no clock, no node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.diagnosis.decider import Decider
from orchestrator.diagnosis.events import Event, Kind, Order
from orchestrator.diagnosis.live import Texts
from orchestrator.diagnosis.verdict import build_verdict
from orchestrator.values import Node, NodePlan, Plan, Verdict

START = 1000.0


def build_plan(*processes: int) -> Plan:
    nodes = []
    first = 0
    for node_rank, count in enumerate(processes):
        nodes.append(
            NodePlan(
                node_rank=node_rank,
                node=Node(name=f"node{node_rank}", host=f"10.0.0.{node_rank + 1}"),
                processes=count,
                first_rank=first,
                address=f"10.0.0.{node_rank + 1}",
                interface="eth0",
                python="/usr/bin/python3",
                workdir="/w",
                run_folder=f"/r/{node_rank}",
                argv=("python3",),
                env=(),
            )
        )
        first += count
    return Plan(
        run_id="run",
        attempt=1,
        project="p",
        nodes=tuple(nodes),
        master_addr="10.0.0.1",
        master_port=1234,
        script=("train.py",),
        grace_s=30.0,
        failure_grace_s=2.0,
    )


class Story:
    """Tells a decider what happens, and keeps what it orders."""

    def __init__(self, *processes: int) -> None:
        self.plan = build_plan(*processes)
        self.decider = Decider(self.plan, started=START, join_limit_s=180.0)
        self.orders: list[Order] = []

    def tell(self, kind: Kind, node_rank: int = -1, at: float = 1.0, **data: Any) -> list[Order]:
        orders = self.decider.take(Event(kind=kind, time=START + at, node_rank=node_rank, data=data))
        self.orders += orders
        return orders

    def all_run(self) -> None:
        for node in self.plan.nodes:
            self.tell("agent", node.node_rank, pid=1)
            for local, rank in enumerate(node.ranks):
                self.tell("rank", node.node_rank, rank=rank, local_rank=local, world_size=self.plan.world_size)

    def rank_ends(self, rank: int, at: float = 5.0, code: int | None = 0, **data: Any) -> list[Order]:
        node = next(node for node in self.plan.nodes if rank in node.ranks)
        local = rank - node.first_rank
        fields = {"signal": None, **data}
        return self.tell("rank_exit", node.node_rank, at, rank=rank, local_rank=local, code=code, **fields)

    def node_ends(
        self, node_rank: int, at: float = 6.0, code: int | None = 0, state: str = "succeeded", **data: Any
    ) -> None:
        self.tell("agent_exit", node_rank, at, code=code, signal=None, after_stop=data.pop("after_stop", False))
        self.tell("final", node_rank, at, state=state, **{"reason": "", "killed": 0, "survivors": [], **data})

    def verdict(
        self,
        err: Mapping[int, str] | None = None,
        files: Mapping[int, bytes] | None = None,
        agents: Mapping[int, str] | None = None,
        outs: Mapping[int, str] | None = None,
        told: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Verdict:
        texts = Texts(
            rank_err=lambda rank: (err or {}).get(rank, ""),
            rank_error_file=lambda rank: (files or {}).get(rank, b""),
            agent_err=lambda node_rank: (agents or {}).get(node_rank, ""),
            rank_out=lambda rank: (outs or {}).get(rank, ""),
            node_evidence=lambda node_rank: (told or {}).get(node_rank, {}),
            place=lambda evidence: evidence,
            files=lambda rank, node_rank: (f"{rank} {node_rank}",),
        )
        return build_verdict(self.decider.history, texts, START + 100)
