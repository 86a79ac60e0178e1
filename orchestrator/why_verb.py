"""The verb why with its flags."""
# ruff: noqa: PLC0415 - heavy modules (pydantic, yaml, paramiko) are imported inside the verbs: --help has to be quick

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.flags import SHARED, add_verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.settings import Settings

VOICE = {name: SHARED[name] for name in ("json_output", "quiet", "verbose", "color")}


def add_why_verb(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register the verb; `build` makes settings of the flags."""

    @add_verb(
        app,
        {
            **VOICE,
            "what": Annotated[
                str | None,
                typer.Argument(
                    metavar="[RUN|LOG DIR|FILE]", help="A run id or the beginning of one, or logs of any run."
                ),
            ],
        },
    )
    def why(flags: dict[str, Any]) -> int:
        """Say which rank of a run broke first, and why; also of runs that others started. Contacts no node."""
        what = flags.pop("what")
        settings = build(flags)
        from orchestrator import why_actions

        return why_actions.why(settings, what)
