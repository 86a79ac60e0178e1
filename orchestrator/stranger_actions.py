"""Stops runs of which the launch host has no record: the nodes of a list are asked what of this user's lives there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.nodelist import read_node_list, select_nodes
from orchestrator.output.console import Talk
from orchestrator.output.kill_text import is_clean, kill_document, kill_exit, render_kill
from orchestrator.output.question import confirm
from orchestrator.output.wording import count
from orchestrator.phases.found_runs import FoundRun, Search, choose_found, describe, find_runs, stop_found
from orchestrator.phases.known_runs import KnownRun, read_known_runs
from orchestrator.settings import Settings
from orchestrator.values import Exit, StopReport


def names_nodes(settings: Settings) -> bool:
    """Tell whether this very call names a node list; a variable or a config that does is there for launches."""
    return settings.origins["nodes"].startswith("flag ")


def kill_found(
    settings: Settings,
    run: str | None,
    all_runs: bool,  # noqa: FBT001
    yes: bool,  # noqa: FBT001
    talk: Talk,
    close: Callable[[KnownRun], None],
) -> int:
    """Find this user's runs on the nodes of the list, stop the one that is meant and prove that nothing of it is left.

    `close` is called with the record of a run that has one here.
    """
    nodes = select_nodes(read_node_list(settings.nodes), settings.include, settings.exclude)
    size, names = count(len(nodes), "node"), [node.name for node in nodes]
    with talk.waiting(f"asking {size} for runs", names) as done:
        search = find_runs(nodes, settings, done)
    chosen = choose_found(search, run, all_runs=all_runs)
    if not chosen:
        return tell_none(search, settings, talk)
    if all_runs and not yes:
        listed = "".join(f"  {describe(found, nodes)}\n" for found in chosen)
        confirm(count(len(chosen), "run"), "stop", "stopped", listed)
    code = Exit.DONE
    for found in chosen:
        reports = stop_one(search, found, settings, talk)
        code = max(code, kill_exit(reports))
        if is_clean(reports):
            for known in records_of(search, found):
                close(known)
    return int(code)


def records_of(search: Search, found: FoundRun) -> list[KnownRun]:
    """Find the record of a run here, if all the nodes that it names were asked."""
    asked = {node.host for node in search.nodes}
    known = [known for known in read_known_runs(Path.home()) if known.run_id == found.run_id and known.live]
    return [one for one in known if {node.host for node in one.nodes} <= asked]


def tell_none(search: Search, settings: Settings, talk: Talk) -> int:
    """Say that nothing lives, as far as the nodes could be asked."""
    reports = search.unasked
    asked = len(search.nodes) - len(reports)
    if reports:
        talk.show(render_kill(reports))
    talk.show(f"no run of this user lives on {count(asked, 'node')}" + (" that could be asked" if reports else ""))
    if settings.json_output:
        talk.document({**kill_document("", reports), "run_id": None})
    return int(kill_exit(reports))


def stop_one(search: Search, found: FoundRun, settings: Settings, talk: Talk) -> list[StopReport]:
    """Stop one run where it was found and show the proof."""
    talk.say(f"stopping {describe(found, search.nodes)}; {settings.grace_s:g} s grace")
    reports = stop_found(search, found, settings)
    talk.show(render_kill(reports))
    if settings.json_output:
        talk.document(kill_document(found.run_id, reports))
    return reports
