"""What the verb why does: find what is meant, show the verdict that was given, or judge the logs that lie there."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.diagnosis.ladder.facts import NO_SIGN
from orchestrator.diagnosis.ladder.judge import judge
from orchestrator.diagnosis.logs.verdict import build_foreign_verdict
from orchestrator.errors import UsageError
from orchestrator.output.console import Talk, build_talk
from orchestrator.output.verdict_text import render_verdict, verdict_document
from orchestrator.output.why_text import render_why, why_document
from orchestrator.output.wording import shorten_path
from orchestrator.phases import control
from orchestrator.phases.foreign.ours import is_experiment
from orchestrator.phases.foreign.read import read_jobs
from orchestrator.phases.foreign.replay import replay_verdict
from orchestrator.phases.known_runs import KnownRun, choose_run, read_known_runs
from orchestrator.phases.saved_run import SavedRun, read_saved_run
from orchestrator.values import Exit, Node, Verdict

if TYPE_CHECKING:
    from orchestrator.settings import Settings


def why(settings: Settings, what: str | None) -> int:
    """Say why a run ended as it did."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    path = Path(what).expanduser() if what else None
    if path is not None and path.exists() and not is_experiment(path):
        show_logs(path, talk)
        return int(Exit.DONE)
    known = _find_run(what, path)
    try:
        saved = read_saved_run(known)
    except UsageError:
        if path is None or not path.is_dir():
            raise
        # A record that is none: what lies beside it still tells.
        show_logs(path, talk)
        return int(Exit.DONE)
    if saved.plan is None:
        raise UsageError(
            what=f"{known.run_id} has nothing to tell: nothing was started (state: {saved.state})",
            where=known.experiment,
        )
    if saved.verdict is not None:
        show_saved(saved, saved.verdict, talk)
        return int(Exit.DONE)
    if control.has_controller(known.run_id):
        raise UsageError(
            what=f"{known.run_id} is not over (state: {saved.state})",
            remedy=f"aorta-launch stacks {known.run_id} shows what every rank is doing",
        )
    verdict = replay_verdict(saved, saved.plan)
    if verdict is None:
        show_logs(saved.paths.root, talk)
    else:
        show_saved(saved, verdict, talk)
    return int(Exit.DONE)


def _find_run(what: str | None, path: Path | None) -> KnownRun:
    """Find the run that is meant; without a word the latest one.

    Raises:
        UsageError: there is none.
    """
    runs = read_known_runs(Path.home())
    if path is not None and path.exists():
        return _describe(path)
    if what is None:
        if not runs:
            raise UsageError(
                what="no run is known here", where="command line", remedy="name a run, a folder of logs or a file"
            )
        return runs[-1]
    if "/" in what or (path is not None and path.suffix):
        raise UsageError(
            what=f"there is no run, folder or file {what}", where="command line", remedy="see aorta-launch ls"
        )
    return choose_run(runs, what, "why")


def _describe(path: Path) -> KnownRun:
    """Describe a run by its experiment directory alone: it need not be remembered here any more."""
    document: dict[str, Any] = json.loads((path / "run.json").read_text("utf-8"))
    run_id = str(document.get("run_id") or path.name)
    remembered = next((run for run in read_known_runs(Path.home()) if run.run_id == run_id), None)
    if remembered is not None:
        return remembered
    nodes: tuple[Node, ...] = ()
    with suppress(LookupError, TypeError):  # whoever reads the record says what is wrong with it
        nodes = tuple(Node(name=str(one["name"]), host=str(one["host"])) for one in document.get("nodes") or ())
    return KnownRun(run_id=run_id, entry=path / "run.json", experiment=str(path), live=False, nodes=nodes, ssh={})


def show_saved(saved: SavedRun, verdict: Verdict, talk: Talk) -> None:
    """Show the page that was shown when the run ended."""
    if talk.as_json:
        talk.document(verdict_document(verdict))
    elif saved.plan is not None:
        talk.show(render_verdict(verdict, saved.plan, shorten_path(saved.paths.root, Path.cwd())))


def show_logs(path: Path, talk: Talk) -> None:
    """Judge logs and show what they say; of several runs those that failed."""
    judged = [(job, build_foreign_verdict(job.case, judge(job.case), job.logs)) for job in read_jobs(path)]
    bad = [one for one in judged if one[1].state != "succeeded"]
    shown = sorted(bad, key=lambda one: one[1].rule == NO_SIGN) or judged[:1]
    if talk.as_json:
        talk.document(why_document(shown[0][1], shown[0][0].name))
        return
    for job, verdict in shown:
        talk.show(render_why(verdict, str(path), job.name, job.unread))
