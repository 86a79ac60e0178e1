"""The verbs for runs that are there already; each is one function, registered with its flags."""
# ruff: noqa: PLC0415 - heavy modules (pydantic, yaml, paramiko) are imported inside the verbs: --help has to be quick

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.errors import UsageError
from orchestrator.flags import LAUNCH, SHARED, add_verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.settings import Settings

RUN: Any = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="A run id or the beginning of one; left out: the one live run.")
]


def add_run_verbs(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register every verb of this file; `build` makes settings of the flags."""

    @add_verb(
        app,
        {
            **SHARED,
            "grace_s": LAUNCH["grace_s"],
            "run": RUN,
            "all": Annotated[
                bool | None, typer.Option("--all", metavar=" ", help="Every live run.", show_default=False)
            ],
            "yes": Annotated[bool | None, typer.Option("--yes", metavar=" ", help="Do not ask.", show_default=False)],
        },
    )
    def kill(flags: dict[str, Any]) -> int:
        """Stop a run on all of its nodes and prove that nothing of it is left."""
        run, all_runs, yes = flags.pop("run"), bool(flags.pop("all")), bool(flags.pop("yes"))
        if run and all_runs:
            raise UsageError(f"{run} and --all exclude each other", "command line", "name one run, or --all")
        settings = build(flags)
        from orchestrator import run_actions

        return run_actions.kill(settings, run, all_runs, yes)
