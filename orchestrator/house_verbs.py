"""The verbs that keep house: what is remembered here, what may go, one command on every node."""
# ruff: noqa: PLC0415 - heavy modules (pydantic, yaml, paramiko) are imported inside the verbs: --help has to be quick

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.errors import UsageError
from orchestrator.flags import JSON, REACH, SHARED, add_verb, build_switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.settings import Settings

VOICE = {name: SHARED[name] for name in ("json_output", "quiet", "verbose", "color")}


def add_house_verbs(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register every verb of this file; `build` makes settings of the flags."""
    add_ls(app, build)
    add_note(app, build)
    add_prune(app, build)
    add_exec(app, build)


def add_ls(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register `ls`."""

    @add_verb(app, {**VOICE, "all": build_switch("--all", "Every finished run, not only the latest 20.")})
    def ls(flags: dict[str, Any]) -> int:
        """List the runs that this machine remembers; contacts no node."""
        every = bool(flags.pop("all"))
        settings = build(flags)
        from orchestrator import house_actions

        return house_actions.list_runs(settings, every=every)


def add_note(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register `note`."""

    @add_verb(
        app,
        {
            **VOICE,
            "run": Annotated[str | None, typer.Argument(metavar="RUN", help="A run id or the beginning of one.")],
            "text": Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="What is to be remembered.")],
        },
    )
    def note(flags: dict[str, Any]) -> int:
        """Write a note on a run: ls and status show the latest."""
        run, text = flags.pop("run"), " ".join(flags.pop("text") or ()).strip()
        if not run or not text:
            raise UsageError(
                "nothing to note" if run else "no run is named", "command line", "write aorta-launch note RUN TEXT"
            )
        settings = build(flags)
        from orchestrator import house_actions

        return house_actions.note(settings, run, text)


def add_prune(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register `prune`."""

    @add_verb(
        app,
        {
            "keep": Annotated[
                int | None, typer.Option("--keep", metavar="N", min=0, help="The newest finished runs that stay.")
            ],
            "preview": build_switch("--dry-run", "Say what would be freed, and change nothing anywhere."),
            "yes": build_switch("--yes", "Do not ask."),
            "nodes_only": build_switch("--nodes-only", "Free the nodes; what lies here stays."),
            "lose_outputs": build_switch("--lose-outputs", "Also runs whose outputs are not here yet: they are lost."),
            **REACH,
            **JSON,
        },
    )
    def prune(flags: dict[str, Any]) -> int:
        """Remove old finished runs, here and on their nodes; never one that lives."""
        keep, preview = flags.pop("keep"), bool(flags.pop("preview"))
        yes, nodes_only = bool(flags.pop("yes")), bool(flags.pop("nodes_only"))
        lose_outputs = bool(flags.pop("lose_outputs"))
        if keep is None:
            raise UsageError("how many runs are to stay is not said", "command line", "write --keep N")
        settings = build(flags)
        from orchestrator import house_actions

        return house_actions.prune(
            settings, keep, dry_run=preview, yes=yes, nodes_only=nodes_only, lose_outputs=lose_outputs
        )


def add_exec(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register `exec`."""

    @add_verb(
        app,
        {
            **SHARED,
            "timeout_s": Annotated[
                str | None, typer.Option("--timeout", metavar="TIME", help="End the command after 90s, 5m, 1h.")
            ],
            "command": Annotated[
                list[str] | None,
                typer.Argument(metavar="-- COMMAND", help="One word: a line for /bin/sh. Several: the very words."),
            ],
        },
    )
    def exec_(flags: dict[str, Any]) -> int:
        """Run one command on every node at once, and fold what is equal."""
        words = flags.pop("command") or []
        if not any(words):
            raise UsageError("no command is given", "command line", "write aorta-launch exec -- COMMAND")
        settings = build(flags)
        from orchestrator import house_actions

        return house_actions.execute(settings, words)
