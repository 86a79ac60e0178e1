"""What can be done with runs that are there already: one function a verb, each the ordered list of its phases."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import AortaError, UsageError
from orchestrator.output.console import Talk, build_talk
from orchestrator.output.kill_text import is_clean, kill_document, kill_exit, render_kill, render_notified
from orchestrator.output.question import confirm
from orchestrator.output.wording import count
from orchestrator.phases.connect import close_links
from orchestrator.phases.control import HEARD_S, ask_controller, has_controller, name_controller
from orchestrator.phases.known_runs import KnownRun, choose_run, choose_runs, reach_settings, read_known_runs
from orchestrator.phases.notify import notify_ranks, parse_signal
from orchestrator.phases.record import end_entry
from orchestrator.phases.saved_run import SavedRun, read_saved_run
from orchestrator.phases.stop import stop_known
from orchestrator.settings import Settings
from orchestrator.stranger_actions import kill_found, names_nodes
from orchestrator.transport import Link
from orchestrator.values import Exit


def kill(settings: Settings, run: str | None, all_runs: bool, yes: bool, signal_word: str | None) -> int:  # noqa: FBT001
    """Stop runs on all of their nodes and prove that nothing of them is left, or signal their ranks."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    number = parse_signal(signal_word) if signal_word is not None else None
    if number is not None and names_nodes(settings):
        raise UsageError(
            what="--signal and --nodes exclude each other: the ranks of a run are known by its record alone",
            where="command line",
            remedy="leave out --nodes, on the machine that launched the run",
        )
    if number is None and names_nodes(settings):

        def close(known: KnownRun) -> None:
            close_record(known, reach_settings(settings, known, known.control), talk)

        return kill_found(settings, run, all_runs, yes, talk, close)
    chosen = choose_runs(read_known_runs(Path.home()), run, all_runs=all_runs)
    if not chosen:
        talk.say("no run is live, as far as this machine knows")
    if chosen and all_runs and not yes and number is None:
        confirm(count(len(chosen), "run"), "stop", "stopped", "".join(f"  {known.run_id}\n" for known in chosen))
    code = Exit.DONE
    for known in chosen:
        own = reach_settings(settings, known, known.control)
        code = max(code, kill_one(known, own, talk) if number is None else notify_one(known, own, talk, number))
    return int(code)


def kill_one(known: KnownRun, settings: Settings, talk: Talk) -> Exit:
    """Stop one run, show the proof, and see to it that its record tells how it ended."""
    size = count(len(known.nodes), "node")
    if known.live:
        talk.say(f"stopping {known.run_id} on {size}, {settings.grace_s:g} s grace")
    else:
        talk.say(f"{known.run_id} has ended; looking on {size} for what is left of it")
    links: dict[int, Link] = {}
    try:
        reports = stop_known(known, settings, links)
    except KeyboardInterrupt:
        talk.insist(f"the nodes go on stopping it; aorta-launch kill {known.run_id} proves it")
        raise
    talk.show(render_kill(reports))
    if settings.json_output:
        talk.document(kill_document(known.run_id, reports))
    if is_clean(reports):
        close_record(known, settings, talk, links)
    close_links(links.values())
    return kill_exit(reports)


def close_record(known: KnownRun, settings: Settings, talk: Talk, links: Mapping[int, Link] | None = None) -> None:
    """See to it that the record of a run of which nothing lives tells how it ended."""
    saved = record_of(known)
    if saved is not None and not saved.complete:
        if not has_controller(known.run_id):
            from orchestrator.phases.attend import settle  # noqa: PLC0415 - it loads all that judges a run

            try:
                settle(known, settings, talk, links)
            except AortaError as error:
                # The proof has been given; what is missing is only what is written of it here.
                talk.warn(f"{known.run_id} is not on record as ended: {error} · {error.remedy}")
        elif saved.verdict is None and ask_controller(known, {"op": "hello"}, HEARD_S) is None:
            who = name_controller(known.run_id)
            talk.warn(f"{known.run_id} is not on record as ended: its controller, {who}, stands still (kill -CONT?)")
        saved = record_of(known)
    if saved is None or saved.complete or saved.verdict is not None:
        end_entry(known.entry, live=False)


def record_of(known: KnownRun) -> SavedRun | None:
    """Read the record of a run; None where it is gone: what is left of the run are its nodes then."""
    try:
        return read_saved_run(known)
    except UsageError:
        return None


def notify_one(known: KnownRun, settings: Settings, talk: Talk, number: int) -> Exit:
    """Signal the ranks of one run and say which took it."""
    told = notify_ranks(known, settings, number)
    talk.show(render_notified(told, number))
    taken = any(one.ranks for one in told)
    return Exit.DONE if taken and not any(one.error for one in told) else Exit.FAILED


def attach(settings: Settings, run: str | None) -> int:
    """Show a run live again, wherever its controller went, and end with its exit code."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    known = choose_run(read_known_runs(Path.home()), run, "attach")
    from orchestrator.phases.view import View, watch_run  # noqa: PLC0415 - kill has no use for it

    view = View(known, reach_settings(settings, known), talk)
    return watch_run(view)
