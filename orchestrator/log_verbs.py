"""The verb logs with its flags."""
# ruff: noqa: PLC0415 - heavy modules (pydantic, yaml, paramiko) are imported inside the verbs: --help has to be quick

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.flags import LOGS, REACH, add_verb
from orchestrator.run_verbs import RUN

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

    from orchestrator.settings import Settings


def add_log_verbs(app: typer.Typer, build: Callable[[dict[str, Any]], Settings]) -> None:
    """Register every verb of this file; `build` makes settings of the flags."""

    @add_verb(app, {**REACH, "run": RUN, **LOGS})
    def logs(flags: dict[str, Any]) -> int:
        """Print what the ranks of a run wrote, or follow it until the run is over."""
        run, follow, raw = flags.pop("run"), bool(flags.pop("follow")), bool(flags.pop("raw"))
        ranks, nodes, since, stream = (flags.pop(name) for name in ("rank", "node", "since", "stream"))
        settings = build(flags)
        from orchestrator import kinds, log_actions
        from orchestrator.noderanges import split_names

        if stream not in (None, "out", "err", "both"):
            raise UsageError(f"expected out, err or both, not {stream!r}", "--stream", "see aorta-launch logs --help")
        try:
            since_s = None if since is None else kinds.parse_seconds(since)
        except ValueError as error:
            raise UsageError(f"expected {error}, not {since!r}", "--since", "see aorta-launch logs --help") from None
        words = log_actions.LogWords(
            ranks=ranks,
            nodes=tuple(split_names(",".join(nodes or ()))),
            since_s=since_s,
            stream=stream or "both",
            raw=raw,
            follow=follow,
        )
        return log_actions.logs(settings, run, words)
