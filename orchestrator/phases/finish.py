"""The end of a run: its verdict is said, what the ranks wrote comes home, the record is closed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
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
    verdict = with_remedy(verdict, plan, settings)
    with suppress(OSError):
        desk.log.record("verdict", **verdict_document(verdict)["verdict"])
    record.end(verdict)
    say_verdict(desk.talk, verdict, plan, record.paths.root)
    desk.controller.note_end()
    signals.release()
    return bring_home(links, settings, plan, verdict, record, desk.talk)


def with_remedy(verdict: Verdict, plan: Plan, settings: Settings) -> Verdict:
    """Name the way out where it lies in the words of this call."""
    if "address already in use" in verdict.cause.lower() and settings.master_port is not None:
        return replace(verdict, remedy=f"leave out --master-port {plan.master_port}: a free port is found")
    return verdict


def bring_home(
    links: Sequence[Link | None], settings: Settings, plan: Plan, verdict: Verdict, record: Record, talk: Talk
) -> int:
    """Collect the outputs of a run that is over, and close its record."""
    try:
        with talk.waiting("collecting the outputs"):
            collected = collect_outputs(links, plan, record.paths, settings)
    except KeyboardInterrupt:
        record.write(not_collected=[node.node.name for node in plan.nodes])
        talk.warn(f"the outputs were not all collected; they lie on the nodes in {plan.nodes[0].run_folder}/outputs")
        return int(verdict.exit_code or Exit.INTERRUPTED)
    for error in collected.errors:
        tell_missing(talk, error)
    if collected.missing:
        # The run stays open: whoever attaches tries again, and prune leaves it alone.
        talk.warn(f"once that is mended: aorta-launch attach {plan.run_id} collects what is missing")
    else:
        record.time("collected")
    record.write(not_collected=list(collected.missing))
    return verdict.exit_code


def say_verdict(talk: Talk, verdict: Verdict, plan: Plan, experiment: Path) -> None:
    """Say how a run ended; -q is for good news."""
    tell = talk.say if verdict.state == "succeeded" else talk.insist
    tell("")
    tell(render_verdict(verdict, plan, shorten_path(experiment, current_folder())))


def tell_missing(talk: Talk, error: AortaError) -> None:
    """Say which outputs did not come; that does not change how the run ended."""
    remedy = f" · {error.remedy}" if error.remedy else ""
    talk.warn(f"{error}{remedy}")


def current_folder() -> Path:
    """Give the folder that we are in; the root where it has been removed meanwhile."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")
