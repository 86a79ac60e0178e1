"""The verb stacks, registered with its flags."""
# ruff: noqa: PLC0415 - heavy modules (pydantic, yaml, paramiko) are imported inside the verbs: --help has to be quick

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.flags import JSON, REACH, add_verb, build_switch
from orchestrator.run_verbs import RUN

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

    from orchestrator.settings import Settings


def add_stacks_verb(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register it; `build` makes settings of the flags."""

    @add_verb(
        app,
        {
            **REACH,
            **JSON,
            "run": RUN,
            "save": build_switch("--save", "Keep them in the experiment directory, below diagnosis/."),
            "native": build_switch("--native", "C and C++ frames too; each rank stands still for a moment."),
        },
    )
    def stacks(flags: dict[str, Any]) -> int:
        """Show what every rank is doing now, equal stacks folded; stops nothing."""
        run, save, native = flags.pop("run"), bool(flags.pop("save")), bool(flags.pop("native"))
        settings = build(flags)
        from orchestrator import stacks_actions

        return stacks_actions.show_stacks(settings, run, save=save, native=native)
