"""The names in braces that a config may use: four in launch.args and in environment values, more in launch.command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from orchestrator.errors import ConfigError

NAMES = ("config", "output_dir", "run_id", "node_rank")
COMMAND_NAMES = (
    *("python", "master_addr", "master_port", "nnodes", "nproc_per_node", "world_size", "first_rank"),
    *NAMES,
)

_ONE = "|".join(NAMES)
# Only the known names, because arguments may be JSON or a format string of the script's own.
_PATTERN = re.compile(rf"\{{\{{(?P<kept>{_ONE})\}}\}}|\{{(?P<name>{_ONE})\}}")
# In a command a name that is none is a slip: no program starts with it. JSON has quotes behind its braces.
_IN_COMMAND = re.compile(r"\{\{(?P<kept>[A-Za-z_]\w*)\}\}|\{(?P<name>[A-Za-z_]\w*)\}")


def speaks_for_config(origin: str) -> bool:
    """Tell whether a value came from the config or from --set, which edits it; the user's own words are untouched."""
    return origin.startswith(("config", "flag --set", "--set"))


def replace_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace {config}, {output_dir}, {run_id} and {node_rank}; {{config}} stays as {config}, other braces as they are."""

    def one(match: re.Match[str]) -> str:
        kept = match["kept"]
        return f"{{{kept}}}" if kept else values[match["name"]]

    return _PATTERN.sub(one, text)


def check_command_names(words: Sequence[str], where: str) -> None:
    """Refuse names in braces that a command cannot have.

    Raises:
        ConfigError: one is unknown; the nearest one is named.
    """
    for word in words:
        for match in _IN_COMMAND.finditer(word):
            name = match["name"]
            if name is None or name in COMMAND_NAMES:
                continue
            near = get_close_matches(name, COMMAND_NAMES, n=1, cutoff=0.5)
            raise ConfigError(
                f"launch.command: there is no {{{name}}}" + (f", did you mean {{{near[0]}}}?" if near else ""),
                where=where,
                remedy=f"there are {' '.join(f'{{{one}}}' for one in COMMAND_NAMES)}; {{{{{name}}}}} stays as {{{name}}}",
            )


def replace_in_command(word: str, values: Mapping[str, str]) -> str:
    """Replace the names in one word of a command; an IPv6 address gets its brackets where a port or a URL surrounds it."""

    def one(match: re.Match[str]) -> str:
        if match["kept"]:
            return f"{{{match['kept']}}}"
        value, end = values[match["name"]], match.end()
        in_url = word[end : end + 1] == ":" or word[: match.start()].endswith("//")
        return f"[{value}]" if match["name"] == "master_addr" and ":" in value and in_url else value

    return _IN_COMMAND.sub(one, word)
