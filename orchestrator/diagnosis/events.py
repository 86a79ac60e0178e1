"""What happens during a run, as one kind of value: everything that decides is fed with these and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from orchestrator.light_dataclass import dataclass

Kind = Literal[
    # told by the supervisor of a node
    "ready",
    "agent",
    "rank",
    "rank_exit",
    "agent_exit",
    "stopping",
    "signalled",
    "log_space",
    "final",
    # told by the pump of a node
    "supervisor_lost",
    "rebooted",
    "vanished",
    # found out about a link
    "suspect",
    "back",
    "lost",
    "store_error",
    "store_back",
    # found out about the logs of a node
    "gap",
    # happened on the launch host
    "stop",
    "interrupt",
    "terminate",
    "kill",
    "leave",
    "hang",
    "hang_over",
    "time_limit",
    "tick",
]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened; `time` is on the launch host's clock, seconds since the epoch."""

    kind: Kind
    time: float
    node_rank: int = -1
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AgentExit:
    """How one agent ended; its code carries no cause, only that something was wrong."""

    node_rank: int
    time: float
    code: int | None
    signal: int | None
    after_stop: bool
    error: str = ""

    @property
    def clean(self) -> bool:
        """It ended with status 0."""
        return self.code == 0


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the decider wants done: stop nodes, or tell the user something."""

    stop: tuple[int, ...] = ()
    grace_s: float = 0.0
    say: str = ""
