"""Starts a run in two steps: every node gets its supervisor and its order; when all have said ready, all start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AortaError, LinkLostError, NodeError
from orchestrator.plan.environment import CLEARED
from orchestrator.transport import Channel
from orchestrator.transport.cargo import list_supervisors
from orchestrator.transport.fanout import fan_out
from orchestrator.values import NodePlan, Plan

if TYPE_CHECKING:
    from orchestrator.phases.ground import Ground
    from orchestrator.settings import Settings

READY_S = 60.0


def build_order(plan: Plan, node: NodePlan, settings: Settings) -> dict[str, Any]:
    """Build what one node is told; argv and environment travel as data and are never parsed by a shell."""
    return {
        "run_id": plan.run_id,
        "attempt": plan.attempt,
        "node_rank": node.node_rank,
        "run_folder": node.run_folder,
        "workdir": node.workdir,
        "processes": node.processes,
        "gpu_memory": dict(node.gpu_memory),
        "first_rank": node.first_rank,
        "world_size": plan.world_size,
        "is_command": plan.agents_are_commands,
        "agent": plan.agent,
        "files": dict(node.files),
        "grace_s": plan.grace_s,
        "failure_grace_s": plan.failure_grace_s,
        "lease_s": settings.lease_s if settings.on_disconnect == "stop" else 0.0,
        "log_space_mib": settings.log_space_mib,
        "rank_hook": settings.rank_hook,
        "limit_s": settings.timeout_s or 0.0,
        "config": settings.config_text,
        "argv": list(node.argv),
        "env": {variable.name: variable.value for variable in node.env},
        "cleared": list(CLEARED),
        "supervisor": list_supervisors(),
    }


def start_supervisors(ground: Ground, plan: Plan) -> list[Channel]:
    """Give every node its supervisor and its order; nothing runs yet.

    Raises:
        AortaError: a node that cannot; what had been prepared on the others is undone.
    """
    opened: dict[int, Channel] = {}

    def start(node: NodePlan) -> Channel:
        channel = ground.links[node.node_rank].open("start", build_order(plan, node, ground.settings))
        opened[node.node_rank] = channel
        _wait_ready(channel, node)
        return channel

    try:
        return fan_out(start, plan.nodes, ground.settings.fanout)
    except BaseException:
        # Closing its channel before "go" tells a node that the start was called off.
        for channel in list(opened.values()):
            channel.close()
        raise


def _wait_ready(channel: Channel, node: NodePlan) -> None:
    try:
        frame = channel.read(READY_S)
    except TimeoutError:
        raise LinkLostError(
            what=f"the supervisor was not ready within {READY_S:g} s",
            where=node.node.name,
            remedy="is the node overloaded, or its HOME on a hanging file system?",
        ) from None
    if frame is None:
        raise NodeError(what="the supervisor's starter ended without a word", where=node.node.name)
    if "error" in frame.header:
        raise NodeError(
            what=str(frame.header["error"]), where=node.node.name, remedy=str(frame.header.get("remedy", ""))
        )


def send_go(channels: Sequence[Channel]) -> None:
    """Let every agent start, the head's first: it hosts the store that the others look for."""
    for channel in channels:
        try:
            channel.send({"op": "go"})
        except AortaError:
            # Its reader finds the link broken, and that is told and judged like any other loss.
            continue
