"""What the agent of one node has to know, whichever it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.light_dataclass import dataclass
from orchestrator.plan.paths import NodePaths

if TYPE_CHECKING:
    from orchestrator.settings import Settings


@dataclass(frozen=True, kw_only=True)
class AgentSeat:
    """What the agent of one node has to know."""

    settings: Settings
    python: str
    run_name: str
    node_count: int
    node_rank: int
    processes: int
    first_rank: int
    world_size: int
    master_addr: str
    master_port: int
    paths: NodePaths
    torchrun_flags: Sequence[str]
    script: Sequence[str]
    """The script or -m module and its arguments; empty for a command."""
    placeholders: Mapping[str, str]
    """Those that arguments and environment values know."""

    @property
    def master_host(self) -> str:
        """The address as it stands before a port: one of IPv6 in brackets."""
        return f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr

    @property
    def rdzv_conf(self) -> str:
        """How long the agents wait for each other, in torchrun's words."""
        return f"timeout={math.ceil(self.settings.join_timeout_s)}"
