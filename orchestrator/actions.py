"""The table of contents: each verb is the ordered list of its phases."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from orchestrator.check_actions import read_nodes, survey_nodes
from orchestrator.checks.catalogue import refuse_unknown_checks
from orchestrator.environment import settings_env
from orchestrator.output.checks_text import is_ready, render_checks, render_problems, render_ready
from orchestrator.output.console import Talk, build_talk
from orchestrator.output.plan_text import plan_document, render_commands, render_environment, render_plan
from orchestrator.phases.background import Tell, start_in_background
from orchestrator.phases.dialled import Dialled
from orchestrator.phases.ground import Ground, expected_workdirs, plan_on
from orchestrator.phases.push import begin_push
from orchestrator.phases.record import Record
from orchestrator.phases.run import new_run_id, run_on
from orchestrator.phases.script import check_script
from orchestrator.phases.signals import Terminated, caught_signals
from orchestrator.settings import Settings, render_origins
from orchestrator.values import Exit, Node


def launch(settings: Settings, dialled: Dialled | None = None) -> int:
    """Check, plan, push, start, watch, collect: one run from a node list to its verdict."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    talk.detail(render_origins(settings))
    refuse_unknown_checks(settings)
    nodes = read_nodes(settings)
    check_script(settings)
    # Variables that are there for `check` must neither take the proof from a launch nor put load before it.
    settings = settings.model_copy(update={"checks_only": (), "check_level": 0, "save_facts": None})
    if settings.detach and not (settings.dry_run or settings.print_commands):
        return detach(settings, nodes, talk)
    return launch_on(settings, nodes, talk, dialled=dialled)


def detach(settings: Settings, nodes: tuple[Node, ...], talk: Talk) -> int:
    """Launch from a process in the background, and name the run once every agent has started."""

    def work(tell: Tell) -> int:
        def announce(record: Record) -> None:
            tell({"run_id": record.document["run_id"], "experiment": str(record.paths.root)})

        return launch_on(settings, nodes, talk, announce)

    told = start_in_background(work, as_json=settings.json_output)
    word = told.wait()
    if word is None:
        return told.exit_code()
    talk.say(f"it goes on in the background · aorta-launch attach {word['run_id']} shows it, kill stops it")
    if settings.json_output:
        talk.document({"schema": 1, **word})
    else:
        talk.show(word["run_id"])
    return int(Exit.DONE)


def launch_on(
    settings: Settings,
    nodes: tuple[Node, ...],
    talk: Talk,
    announce: Callable[[Record], None] | None = None,
    dialled: Dialled | None = None,
) -> int:
    """Launch on nodes that were read; with `announce` nobody watches, and it is told the run that has started."""
    env = settings_env(settings, os.environ)
    with ExitStack() as undo:
        try:
            signals = undo.enter_context(caught_signals())
            only_shown = settings.dry_run or settings.print_commands
            run_id = new_run_id(settings.label)
            begin = None if only_shown else partial(begin_push, settings=settings, run_id=run_id, undo=undo)
            ground = survey_nodes(nodes, settings, env, talk, undo, dialled, begin)
            if not show_findings(ground, talk):
                return int(Exit.NOT_READY)
            if only_shown:
                return show_plan(ground, talk)

            def leave(record: Record) -> None:
                assert announce is not None
                signals.background = True
                announce(record)

            return run_on(ground, talk, signals, undo, os.environ, leave if announce else None)
        except Terminated:
            talk.say("stopped by SIGTERM; nothing is left running")
            return int(Exit.STOPPED)
        except KeyboardInterrupt:
            talk.say("stopped by Ctrl-C; nothing is left running")
            return int(Exit.INTERRUPTED)


def show_findings(ground: Ground, talk: Talk) -> bool:
    """Show the findings as far as they matter, and say whether a run may start."""
    nodes, findings = ground.nodes, ground.findings
    if not is_ready(findings) or talk.verbosity > 0:
        # -q is for good news.
        tell = talk.say if is_ready(findings) else talk.insist
        tell(render_checks(nodes, findings, every=talk.verbosity > 0))
        return is_ready(findings)
    problems = render_problems(nodes, findings)
    if problems:
        talk.say(problems)
    if ground.settings.check:
        talk.say(render_ready(nodes, findings))
    return True


def show_plan(ground: Ground, talk: Talk) -> int:
    """Show what would be started, and change nothing anywhere."""
    plan = plan_on(ground, new_run_id(ground.settings.label), 1, expected_workdirs(ground))
    if ground.settings.print_commands:
        talk.out.file.write(render_commands(plan) + "\n")
        return int(Exit.DONE)
    talk.show(render_plan(plan, ground.facts))
    talk.show("")
    talk.show(render_environment(plan))
    if ground.settings.json_output:
        talk.document(plan_document(plan))
    return int(Exit.DONE)
