"""The agent that is any command: its words, its environment, and what may not stand beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, UsageError
from orchestrator.plan.placeholders import check_command_names, replace_in_command
from orchestrator.plan.seat import AgentSeat

if TYPE_CHECKING:
    from orchestrator.settings import Settings

FOLDER = "command"
"""Ends the name of the folder in ranks/ that takes what the command of a node writes."""
_VALUED = frozenset({"-W", "-X"})
"""Options of Python with a word of their own."""


def check_agent(settings: Settings) -> None:
    """Refuse settings of the agent that do not fit together.

    Raises:
        UsageError: a command without its agent, the agent without a command, or a script beside it.
        ConfigError: a name in braces that there is not.
    """
    origin = settings.origins.get("command", "")
    if settings.agent != "command":
        if settings.command:
            raise UsageError(
                f"a command is given, and the agent is {settings.agent}",
                origin or "launch.command",
                "add --agent command (launch.agent), or leave the command out",
            )
        return
    if not settings.command:
        raise UsageError(
            "nothing to run: the agent is a command, and none is given",
            settings.origins.get("agent", "launch.agent"),
            "give --command 'WORDS', or launch.command in the config",
        )
    for key in ("script", "module", "args"):
        if getattr(settings, key):
            raise UsageError(
                f"a {key if key != 'args' else 'script'} and a command are both given",
                settings.origins.get(key, f"launch.{key}"),
                "write all of it into launch.command, or take --agent torchrun",
            )
    check_command_names(settings.command, origin or "launch.command")


def find_script(settings: Settings) -> tuple[str, ...]:
    """Find the script, or -m and a module, that a command gives to the nodes' Python; empty where there is none."""
    if settings.agent != "command" or settings.command[:1] != ("{python}",):
        return ()
    words = list(settings.command[1:])
    while words and words[0].startswith("-") and words[0] != "-m":
        if words[0] == "-c":
            return ()
        del words[: 2 if words[0] in _VALUED else 1]
    if not words or "{" in words[0]:
        return ()
    return (tuple(words[:2]) if len(words) > 1 else ()) if words[0] == "-m" else (words[0],)


def build_command_words(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Build one node's line; no shell reads it.

    Raises:
        ConfigError: a word became empty that has to name the program.
    """
    words = tuple(replace_in_command(word, values) for word in command)
    if not words[0]:
        raise ConfigError("its first word is empty", "launch.command", "name a program")
    return words


def build_command_env(seat: AgentSeat) -> dict[str, str]:
    """Build what a command finds in its environment.

    RANK, LOCAL_RANK and WORLD_SIZE are not in it: whether the command is a rank itself or starts some, it alone knows.
    """
    return {
        "MASTER_ADDR": seat.master_addr,
        "MASTER_PORT": str(seat.master_port),
        "NNODES": str(seat.node_count),
        "NODE_RANK": str(seat.node_rank),
        "NPROC_PER_NODE": str(seat.processes),
        "TORCHELASTIC_ERROR_FILE": f"{seat.paths.ranks}/{seat.run_name}_{FOLDER}/attempt_0/0/error.json",
    }
