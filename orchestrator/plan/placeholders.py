"""The four names in braces that a config may use in launch.args and in environment values."""

from __future__ import annotations

import re
from collections.abc import Mapping

NAMES = ("config", "output_dir", "run_id", "node_rank")

_ONE = "|".join(NAMES)
# Only the known names, because arguments may be JSON or a format string of the script's own.
_PATTERN = re.compile(rf"\{{\{{(?P<kept>{_ONE})\}}\}}|\{{(?P<name>{_ONE})\}}")


def speaks_for_config(origin: str) -> bool:
    """Tell whether a value came from the config or from --set, which edits it; the user's own words are untouched."""
    return origin.startswith(("config", "flag --set", "--set"))


def replace_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace {config}, {output_dir}, {run_id} and {node_rank}; {{config}} stays as {config}, other braces as they are."""

    def one(match: re.Match[str]) -> str:
        kept = match["kept"]
        return f"{{{kept}}}" if kept else values[match["name"]]

    return _PATTERN.sub(one, text)
