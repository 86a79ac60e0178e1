"""What can be done with runs that are there already: one function a verb, each the ordered list of its phases."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.output.console import build_talk
from orchestrator.output.kill_text import is_clean, kill_document, kill_exit, render_kill
from orchestrator.output.wording import count
from orchestrator.phases.known_runs import KnownRun, choose_runs, read_known_runs
from orchestrator.phases.record import end_entry
from orchestrator.phases.stop import stop_run
from orchestrator.settings import Settings
from orchestrator.values import Exit


def kill(settings: Settings, run: str | None, all_runs: bool, yes: bool) -> int:  # noqa: FBT001
    """Stop runs on all of their nodes and prove that nothing of them is left."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    chosen = choose_runs(read_known_runs(Path.home()), run, all_runs=all_runs)
    if all_runs and not yes:
        confirm(chosen)
    code = Exit.DONE
    for known in chosen:
        talk.say(f"stopping {known.run_id} on {count(len(known.nodes), 'node')}, {settings.grace_s:g} s grace")
        reports = stop_run(known.nodes, reach_settings(settings, known), known.run_id)
        talk.show(render_kill(reports))
        if settings.json_output:
            talk.document(kill_document(known.run_id, reports))
        if is_clean(reports):
            end_entry(known.entry, live=False)
        code = max(code, kill_exit(reports))
    return int(code)


def reach_settings(settings: Settings, known: KnownRun) -> Settings:
    """Reach the nodes as the run's own launch did, but for what this call says itself."""
    said = {key for key, origin in settings.origins.items() if origin != "default"}
    return settings.model_copy(update={key: value for key, value in known.ssh.items() if key not in said})


def confirm(chosen: Sequence[KnownRun]) -> None:
    """Ask before several runs are stopped.

    Raises:
        UsageError: the answer is no, or nobody can be asked.
    """
    if not chosen:
        return
    remedy = "add --yes to stop without being asked"
    if not sys.stdin.isatty():
        raise UsageError(what=f"{count(len(chosen), 'run')} would be stopped, and nobody can be asked", remedy=remedy)
    names = "".join(f"  {known.run_id}\n" for known in chosen)
    if input(f"{names}stop {count(len(chosen), 'run')}? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UsageError(what="nothing was stopped", remedy=remedy)
