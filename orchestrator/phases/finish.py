"""The end of a run: its verdict is said, what the ranks wrote comes home, the record is closed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.output.verdict_text import render_verdict, verdict_document
from orchestrator.output.wording import shorten_path
from orchestrator.phases.collect import collect_outputs
from orchestrator.values import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.errors import AortaError
    from orchestrator.output.console import Talk
    from orchestrator.phases.follow import Desk
    from orchestrator.phases.record import Record
    from orchestrator.phases.signals import Signals
    from orchestrator.settings import Settings
    from orchestrator.transport import Link
    from orchestrator.values import Plan, Verdict


def finish(
    links: Sequence[Link | None],
    settings: Settings,
    plan: Plan,
    verdict: Verdict,
    record: Record,
    desk: Desk,
    signals: Signals,
) -> int:
    """Say the verdict, bring home what the ranks wrote, and close the record; give the exit code."""
    say_verdict(desk.talk, verdict, plan, record.paths.root)
    with suppress(OSError):
        desk.log.record("verdict", **verdict_document(verdict)["verdict"])
    record.end(verdict)
    desk.controller.note_end()
    signals.release()
    return bring_home(links, settings, plan, verdict, record, desk.talk)


def bring_home(
    links: Sequence[Link | None], settings: Settings, plan: Plan, verdict: Verdict, record: Record, talk: Talk
) -> int:
    """Collect the outputs of a run that is over, and close its record."""
    try:
        with talk.waiting("collecting the outputs"):
            errors = collect_outputs(links, plan, record.paths, settings)
    except KeyboardInterrupt:
        talk.warn(f"the outputs were not all collected; they lie on the nodes in {plan.nodes[0].run_folder}/outputs")
        return int(verdict.exit_code or Exit.INTERRUPTED)
    for error in errors:
        tell_missing(talk, error)
    record.time("collected")
    record.write()
    return verdict.exit_code


def say_verdict(talk: Talk, verdict: Verdict, plan: Plan, experiment: Path) -> None:
    """Say how a run ended; -q is for good news."""
    tell = talk.say if verdict.state == "succeeded" else talk.insist
    tell("")
    tell(render_verdict(verdict, plan, shorten_path(experiment, Path.cwd())))


def tell_missing(talk: Talk, error: AortaError) -> None:
    """Say which outputs did not come; that does not change how the run ended."""
    remedy = f" · {error.remedy}" if error.remedy else ""
    talk.warn(f"{error}{remedy}")
