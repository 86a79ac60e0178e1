"""Keeping house: the runs that are remembered here, what may go, one command on every node."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from orchestrator.errors import AortaError, Several
from orchestrator.nodelist import read_node_list, select_nodes
from orchestrator.noderanges import fold_names
from orchestrator.output.console import Talk, build_talk
from orchestrator.output.errors import render_error
from orchestrator.output.folded import executed_document, executed_exit, fold_executed, render_body, render_head
from orchestrator.output.prune_text import Pruning, prune_document, prune_exit, render_after, render_before
from orchestrator.output.question import confirm
from orchestrator.output.runs_table import choose_lines, render_runs, runs_document
from orchestrator.output.wording import count, strip_controls
from orchestrator.phases.connect import close_links, connect_each
from orchestrator.phases.execute import Execution
from orchestrator.phases.known_runs import KnownRun, choose_run, reach_settings, read_known_runs
from orchestrator.phases.notes import add_note
from orchestrator.phases.prune import LOCKED, Crew, find_targets, judge, locked, look_here, remove_here
from orchestrator.phases.remembered import Remembered, read_remembered
from orchestrator.phases.signals import Terminated, caught_signals
from orchestrator.settings import Settings
from orchestrator.values import Exit


def list_runs(settings: Settings, *, every: bool) -> int:
    """List what this machine remembers."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    lines = [one.line for one in read_remembered(Path.home())]
    shown = choose_lines(lines, every=every)
    left_out = len(lines) - len(shown)
    if settings.json_output:
        talk.document(runs_document(shown, time.time(), left_out))
    elif shown:
        talk.show(render_runs(shown, time.time()))
    else:
        talk.say("no run is remembered on this machine")
    if left_out:
        talk.say(f"{count(left_out, 'older finished run')} not shown: aorta-launch ls --all")
    return int(Exit.DONE)


def note(settings: Settings, run: str, text: str) -> int:
    """Write a note on a run."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    known = choose_run(read_known_runs(Path.home()), run, "note")
    written = add_note(Path(known.experiment), text)
    talk.say(f"noted on {known.run_id}")
    if settings.json_output:
        talk.document({"schema": 1, "run_id": known.run_id, **written})
    return int(Exit.DONE)


def prune(settings: Settings, keep: int, *, dry_run: bool, yes: bool, nodes_only: bool, lose_outputs: bool) -> int:
    """Look what old runs hold, say it, ask, remove it."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    remembered = read_remembered(Path.home())
    over = [one for one in remembered if is_over(one)]
    kept, old, uncollected = choose_old(over, keep, lose_outputs=lose_outputs)
    crew = Crew(find_targets(old, lambda run: reach_settings(settings, run)), settings.fanout)
    with ExitStack() as undo:
        undo.callback(crew.close)
        undo.enter_context(caught_signals())
        names = [target.node.name for target in crew.targets]
        try:
            with talk.waiting(f"asking {count(len(names), 'node')}", names) as done:
                crew.connect(done)
                shares = crew.ask([run.run_id for run in old], remove=False)
            pruning = Pruning(
                keep=keep,
                kept=kept,
                uncollected=uncollected,
                live=tuple(one.line.run_id for one in remembered if one.known is not None and not is_over(one)),
                unreadable=tuple(one.line.problem for one in remembered if one.known is None),
                fates=tuple(judge([look_here(run) for run in old], shares)),
                nodes=tuple(shares),
                nodes_only=nodes_only,
            )
            (talk.insist if talk.as_json else talk.show)(render_before(pruning))
            going = sum(1 for fate in pruning.fates if not fate.living)
            wanted = not dry_run and going > 0
            if wanted:
                if not yes:
                    confirm(count(going, "run"), "prune", "pruned")
                pruning = remove_old(pruning, old, crew)
                (talk.insist if talk.as_json else talk.show)(render_after(pruning))
        except Terminated:
            return int(Exit.STOPPED)
    code = prune_exit(pruning)
    if talk.as_json:
        talk.document(prune_document(pruning, done=wanted, code=code))
    return int(code)


def choose_old(
    over: Sequence[Remembered], keep: int, *, lose_outputs: bool
) -> tuple[tuple[str, ...], list[KnownRun], tuple[str, ...]]:
    """Divide finished runs: those that are kept, those that can go, and those whose outputs would be lost with them."""
    beyond = max(0, len(over) - keep)
    going = [one for one in over[:beyond] if lose_outputs or not one.uncollected]
    return (
        tuple(one.line.run_id for one in over[beyond:]),
        [one.known for one in going if one.known is not None],
        tuple(one.line.run_id for one in over[:beyond] if one not in going),
    )


def is_over(one: Remembered) -> bool:
    """Tell whether a run may be pruned as far as this machine knows."""
    return one.known is not None and not one.known.live and not one.line.controlled


def remove_old(pruning: Pruning, old: Sequence[KnownRun], crew: Crew) -> Pruning:
    """Remove the runs of which nothing lives: first on the nodes, then here what was wholly removed there."""
    going = [fate.run_id for fate in pruning.fates if not fate.living]
    with locked(going) as held:
        shares = crew.ask([run_id for run_id in going if run_id in held], remove=True)
        fates = [
            replace(fate, left=(), living=fate.living or ("" if fate.run_id in held else LOCKED))
            for fate in pruning.fates
        ]
        fates = [
            remove_here(run, fate, crew.pending(run.run_id), nodes_only=pruning.nodes_only)
            for run, fate in zip(old, judge(fates, shares), strict=True)
        ]
    return replace(pruning, fates=tuple(fates), nodes=tuple(shares))


def execute(settings: Settings, words: Sequence[str]) -> int:
    """Run one command on every node at once, and fold what is equal."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    nodes = select_nodes(read_node_list(settings.nodes), settings.include, settings.exclude)
    names = [node.name for node in nodes]
    code: int | None = None
    with ExitStack() as undo:
        undo.enter_context(caught_signals())
        try:
            with talk.waiting(f"connecting to {count(len(nodes), 'node')}", names) as done:
                links, errors = connect_each(nodes, settings, done)
            undo.callback(close_links, list(links.values()))
        except KeyboardInterrupt as interrupt:
            return interrupted_exit(interrupt)
        execution = Execution(links, build_command(words), time_limit(settings), settings.lost_after_s)
        try:
            with talk.waiting(f"running on {count(len(links), 'node')}", names) as done:
                execution.run(done)
        except KeyboardInterrupt as interrupt:
            code = end_everywhere(execution, interrupt, talk)
        errors |= execution.errors
        code = executed_exit(list(execution.results.values()), list(errors.values())) if code is None else code
        show_executed(execution, errors, talk)
        if talk.as_json:
            talk.document(executed_document(words, names, execution.results, errors, code))
    return code


def build_command(words: Sequence[str]) -> list[bytes]:
    """Build the command as bytes, as the shell here gave it: one word is a line for a shell, several are the very words."""
    given = [os.fsencode(word) for word in words]
    return [b"/bin/sh", b"-c", *given] if len(given) == 1 else given


def time_limit(settings: Settings) -> float | None:
    """Give the limit that this call names; one in the config is meant for training."""
    return settings.timeout_s if settings.origins["timeout_s"].startswith("flag") else None


def end_everywhere(execution: Execution, interrupt: KeyboardInterrupt, talk: Talk) -> int:
    """End the command on every node and wait for their word; a second Ctrl-C waits for nobody."""
    talk.say(f"ending it on {count(len(execution.unheard), 'node')}; Ctrl-C once more to leave at once")
    with suppress(KeyboardInterrupt):
        execution.stop()
    unheard = fold_names(tuple(execution.name(place) for place in execution.unheard))
    if unheard:
        talk.warn(f"not heard of whether it has ended on {unheard}: a node ends it when it loses us")
    left = unheard or execution.errors or any(one.survivors for one in execution.results.values())
    return int(Exit.FAILED) if left else interrupted_exit(interrupt)


def interrupted_exit(interrupt: KeyboardInterrupt) -> int:
    """Tell Ctrl-C from SIGTERM."""
    return int(Exit.STOPPED if isinstance(interrupt, Terminated) else Exit.INTERRUPTED)


def show_executed(execution: Execution, errors: Mapping[int, AortaError], talk: Talk) -> None:
    """Show one block for all nodes that answer the same, and below them the nodes that do not answer."""
    if not talk.as_json:
        for group in fold_executed([execution.results[place] for place in sorted(execution.results)]):
            talk.show(render_head(group))
            for text in render_body(group[0]):
                talk.out.file.write(text)
        talk.out.file.flush()
    if errors:
        bundle = Several([errors[place] for place in sorted(errors)])
        talk.insist(Text(strip_controls(render_error(bundle))))
