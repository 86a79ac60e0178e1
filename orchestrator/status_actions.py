"""Shows how a run stands, once or again and again; looks, and changes nothing but what nobody else takes care of."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.output.console import Talk, build_talk
from orchestrator.output.pipes import wait_read
from orchestrator.output.status_table import render_status, status_document
from orchestrator.phases.known_runs import KnownRun, choose_run, reach_settings, read_known_runs
from orchestrator.phases.status import Asker, gather_status
from orchestrator.values import Exit

if TYPE_CHECKING:
    from rich.text import Text

    from orchestrator.run_status import RunStatus
    from orchestrator.settings import Settings


def status(settings: Settings, run: str | None, every_s: float | None) -> int:
    """Show how a run stands; where nobody watches it and something happened, bring it to its end first."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    known = choose_run(read_known_runs(Path.home()), run, "status")
    reach = reach_settings(settings, known)
    asker = Asker(known.nodes, reach, known.run_id)
    try:
        if every_s is None:
            with talk.waiting(f"asking {known.run_id}"):
                seen = gather_status(again(known), asker)
        else:
            seen = watch(known, asker, talk, every_s)
        if seen.needs_controller:
            seen = complete(seen, known, asker, reach, talk)
        elif every_s is not None:
            return exit_code(seen)
        show(seen, talk)
        return exit_code(seen)
    except KeyboardInterrupt:
        if every_s is None:
            raise
        return int(Exit.DONE)
    finally:
        asker.close()


def watch(known: KnownRun, asker: Asker, talk: Talk, every_s: float) -> RunStatus:
    """Show a status again and again until the run is over, has to be brought to its end, or nobody looks any more."""
    out = sys.stdout
    from rich.live import Live  # noqa: PLC0415 - only here something moves

    live = Live(console=talk.out, auto_refresh=False) if talk.out.is_terminal and not talk.as_json else None
    with live or nullcontext():
        while True:
            seen = gather_status(again(known), asker)
            if live is not None:
                live.update(draw(seen, talk), refresh=True)
            else:
                show(seen, talk)
            if is_over(seen) or seen.needs_controller:
                return seen
            if not wait_read(out, every_s):
                return seen


def complete(seen: RunStatus, known: KnownRun, asker: Asker, reach: Settings, talk: Talk) -> RunStatus:
    """Let a run be brought to its end that nobody watches, and look again."""
    if again(known).live:  # else its controller has just done so
        what = "the launcher was killed before the start" if seen.unstarted else "something happened on its nodes"
        talk.say(f"nobody watches {known.run_id}, and {what}: bringing it to its end")
        from orchestrator.phases.attend import settle  # noqa: PLC0415 - it loads all that judges a run

        settle(known, reach, talk)
    done = gather_status(again(known), asker)
    # What the nodes said before is what one wants to see beside the verdict.
    return done if done.nodes else replace(done, nodes=seen.nodes)


def exit_code(seen: RunStatus) -> int:
    """Give the exit code of what was shown."""
    return int(Exit.FAILED if seen.unasked else Exit.DONE)


def again(known: KnownRun) -> KnownRun:
    """Read once more what this machine remembers of a run: it may have ended meanwhile."""
    return next((run for run in read_known_runs(Path.home()) if run.run_id == known.run_id), known)


def show(seen: RunStatus, talk: Talk) -> None:
    """Print one status."""
    talk.show(draw(seen, talk))
    if talk.as_json:
        talk.document(status_document(seen))


def draw(seen: RunStatus, talk: Talk) -> Text:
    """Render a status for whoever looks: a terminal has a width, a pipe has none."""
    width = talk.out.width if talk.out.is_terminal else None
    return render_status(seen, width=width, every_rank=talk.verbosity > 0)


def is_over(seen: RunStatus) -> bool:
    """Tell whether nothing more will happen."""
    return not seen.live or (seen.verdict is not None and seen.controller is None)
