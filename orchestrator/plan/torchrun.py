"""The words of the agent on one node."""

from __future__ import annotations

import math
import os.path
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, UsageError
from orchestrator.plan.command import check_agent
from orchestrator.plan.seat import AgentSeat

if TYPE_CHECKING:
    from orchestrator.settings import Settings


def build_script(settings: Settings) -> tuple[str, ...]:
    """Build the words of the script or module, without its arguments; of a command all of them, as they were given.

    Raises:
        UsageError: neither a script nor a module is given.
        ConfigError: the script lies outside the project.
    """
    if settings.agent == "command":
        check_agent(settings)
        return settings.command
    if settings.module:
        return ("-m", settings.module)
    if not settings.script:
        raise UsageError("nothing to run", "launch", "name a script, -m MODULE, or launch.script in the config")
    if not settings.push:
        return (settings.script,)
    return (place_script(settings.script, str(settings.project)),)


def place_script(script: str, project: str) -> str:
    """Give the script's path as it will be on a node, relative to the working directory."""
    inside = os.path.normpath(script)
    if os.path.isabs(inside):  # noqa: PTH117 - text only: the plan looks at no disk
        inside = os.path.relpath(inside, os.path.abspath(project))  # noqa: PTH100 - Path has no pure form of it
    if inside == ".." or inside.startswith("../"):
        raise ConfigError(
            f"it lies outside the project {os.path.abspath(project)}",  # noqa: PTH100 - Path has no pure form of it
            script,
            "only code in the project is pushed: move it there, name another folder in launch.project, or use --no-push with a path that every node has",
        )
    return inside


def build_torchrun_words(seat: AgentSeat) -> tuple[str, ...]:
    """Build one node's agent line: the interpreter, torchrun's own words, the script's words."""
    options = {
        "--nnodes": str(seat.node_count),
        "--node-rank": str(seat.node_rank),
        "--nproc-per-node": str(seat.processes),
        "--master-addr": seat.master_host,
        "--master-port": str(seat.master_port),
        "--rdzv-id": seat.run_name,
        "--rdzv-conf": seat.rdzv_conf,
        "--max-restarts": "0",
        "--monitor-interval": "0.1",
        "--redirects": "3",
        "--log-dir": str(seat.paths.ranks),
    }
    options |= build_newer_options(seat)
    words = [seat.python, "-m", "torch.distributed.run", *(word for pair in options.items() for word in pair)]
    return (*words, *_guard(seat.script))


def build_newer_options(seat: AgentSeat) -> dict[str, str]:
    """Build the options that not every torchrun has: those that the node's own knows."""
    newer = {"--shutdown-timeout": str(math.ceil(seat.settings.grace_s)), "--signals-to-handle": "SIGTERM,SIGINT"}
    return {flag: value for flag, value in newer.items() if flag in seat.torchrun_flags}


def _guard(script: Sequence[str]) -> tuple[str, ...]:
    # torchrun's argparse looks at every word, also at those after the script: without a "--" before the script
    # it swallows a first "--" of the script's, and refuses a "--log" of the script's as an ambiguous option of its own.
    if script[0] == "-m":
        return ("-m", "--", *script[1:])
    return ("--", *script)
