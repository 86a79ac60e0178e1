"""The verbs for runs that are there already; each is one function, registered with its flags."""
# ruff: noqa: PLC0415 - heavy modules (pydantic, yaml, paramiko) are imported inside the verbs: --help has to be quick

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.errors import UsageError
from orchestrator.flags import JSON, LAUNCH, REACH, SHARED, add_verb, build_switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.settings import Settings

LEAST_EVERY_S = 0.1
RUN: Any = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="A run id or the beginning of one; left out: the one live run.")
]


def add_run_verbs(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register every verb of this file; `build` makes settings of the flags."""

    @add_verb(app, {**REACH, "ranks": LAUNCH["ranks"], "run": RUN})
    def attach(flags: dict[str, Any]) -> int:
        """Show a run live again; one whose controller is gone is taken over."""
        run = flags.pop("run")
        settings = build(flags)
        from orchestrator import run_actions

        return run_actions.attach(settings, run)

    add_status_verb(app, build)
    add_kill_verb(app, build)


def add_kill_verb(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register kill."""

    @add_verb(
        app,
        {
            # --nodes finds runs of which there is no record here.
            **SHARED,
            "grace_s": LAUNCH["grace_s"],
            "run": RUN,
            "signal": Annotated[
                str | None, typer.Option("--signal", metavar="NAME", help="Send this to the ranks, and stop nothing.")
            ],
            "all": build_switch("--all", "Every live run."),
            "yes": build_switch("--yes", "Do not ask."),
        },
    )
    def kill(flags: dict[str, Any]) -> int:
        """Stop a run on all of its nodes and prove that nothing of it is left."""
        run, all_runs, yes = flags.pop("run"), bool(flags.pop("all")), bool(flags.pop("yes"))
        number = flags.pop("signal")
        if run and all_runs:
            raise UsageError(f"{run} and --all exclude each other", "command line", "name one run, or --all")
        settings = build(flags)
        from orchestrator import run_actions

        return run_actions.kill(settings, run, all_runs, yes, number)


def add_status_verb(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register status."""

    @add_verb(
        app,
        {
            **REACH,
            **JSON,
            "run": RUN,
            "watch": build_switch("--watch", "Again and again."),
            "every": Annotated[
                str | None, typer.Option("--every", metavar="TIME", help="With --watch: how often [dim](2s)[/dim].")
            ],
        },
    )
    def status(flags: dict[str, Any]) -> int:
        """Show how a run stands: its nodes, ranks, GPUs, steps and last lines."""
        run, watching, every = flags.pop("run"), bool(flags.pop("watch")), flags.pop("every")
        every_s = parse_every(every or "2s")
        settings = build(flags)
        from orchestrator import status_actions

        return status_actions.status(settings, run, every_s if watching or every else None)


def parse_every(text: str) -> float:
    """Read how often the nodes are asked.

    Raises:
        UsageError: no time, or one in which a node could not answer.
    """
    from orchestrator.kinds import parse_seconds

    try:
        every_s = parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"{text} is not {error}", "--every", "write for example 5s") from None
    if every_s < LEAST_EVERY_S:
        raise UsageError(f"{text} is less than {LEAST_EVERY_S:g} s", "--every", "write for example 5s")
    return every_s
