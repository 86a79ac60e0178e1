"""What starts the ranks of a node: torchrun, accelerate or any command; its words, files and environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.errors import NotReadyError
from orchestrator.light_dataclass import dataclass
from orchestrator.plan.accelerate import CONFIG_NAME, CONFIG_TEXT, build_accelerate_words, build_torchrun_values
from orchestrator.plan.command import build_command_env, build_command_words
from orchestrator.plan.seat import AgentSeat
from orchestrator.plan.torchrun import build_torchrun_words

if TYPE_CHECKING:
    from orchestrator.settings import Settings
    from orchestrator.values import Node


@dataclass(frozen=True, kw_only=True)
class AgentPlan:
    """How the agent of one node is started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """What it needs beside the values that identify the run; no user can override it."""
    files: tuple[tuple[str, str], ...] = ()
    """Name in the run folder, and text."""


def build_agent(seat: AgentSeat) -> AgentPlan:
    """Build the start of one node's agent.

    Raises:
        ConfigError: a command without a program.
    """
    if seat.settings.agent == "command":
        return _build_command(seat)
    if seat.settings.agent == "accelerate":
        files = ((CONFIG_NAME, CONFIG_TEXT),)
        return AgentPlan(argv=build_accelerate_words(seat), env=build_torchrun_values(seat), files=files)
    return AgentPlan(argv=build_torchrun_words(seat), env={})


def _build_command(seat: AgentSeat) -> AgentPlan:
    values = {
        **seat.placeholders,
        "python": seat.python,
        "master_addr": seat.master_addr,
        "master_port": str(seat.master_port),
        "nnodes": str(seat.node_count),
        "nproc_per_node": str(seat.processes),
        "world_size": str(seat.world_size),
        "first_rank": str(seat.first_rank),
    }
    return AgentPlan(argv=build_command_words(seat.settings.command, values), env=build_command_env(seat))


def find_unequal(nodes: Sequence[Node], counts: Sequence[int], settings: Settings) -> str:
    """Say which nodes would start how many processes, where unequal numbers are refused; else empty."""
    if len(set(counts)) < 2 or not (settings.equal_nodes or settings.agent == "accelerate"):  # noqa: PLR2004 - equal
        return ""
    groups = {count: [node.name for node, its in zip(nodes, counts, strict=True) if its == count] for count in counts}
    return "; ".join(f"{count} on {', '.join(names)}" for count, names in sorted(groups.items()))


def explain_unequal(settings: Settings) -> str:
    """Say who wants equal numbers of processes."""
    asked = settings.origins.get("equal_nodes", "launch.equal_nodes")
    return f"equal numbers are asked for ({asked})" if settings.equal_nodes else "accelerate divides them evenly"


EQUAL_REMEDY = (
    "give every node the same number: --nproc-per-node N, slots= in the node list; or leave nodes out: --exclude"
)


def refuse_unequal(nodes: Sequence[Node], counts: Sequence[int], settings: Settings) -> None:
    """Refuse nodes that would start unequal numbers of processes, where that is not wanted or cannot be.

    Raises:
        NotReadyError: it names the nodes and their numbers.
    """
    if unequal := find_unequal(nodes, counts, settings):
        raise NotReadyError(
            f"the nodes would start unequal numbers of processes, and {explain_unequal(settings)}: {unequal}",
            "launch",
            EQUAL_REMEDY,
        )
