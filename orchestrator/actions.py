"""The table of contents: each verb is the ordered list of its phases."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from orchestrator.checks.catalogue import check_names_exist, check_rules_fit, refuse_idle_checks, run_checks
from orchestrator.environment import settings_env
from orchestrator.facts import Facts, Survey
from orchestrator.nodelist import read_node_list, select_nodes
from orchestrator.output.catalogue_text import catalogue_document, render_catalogue
from orchestrator.output.checks_document import checks_document
from orchestrator.output.checks_text import is_ready, render_checks, render_problems, render_ready
from orchestrator.output.console import Talk, build_talk
from orchestrator.output.measured import render_measured
from orchestrator.output.plan_text import plan_document, render_commands, render_environment, render_plan
from orchestrator.output.wording import count
from orchestrator.phases.ahead import ask_ahead, prove_ways
from orchestrator.phases.background import Tell, start_in_background
from orchestrator.phases.connect import close_links
from orchestrator.phases.dialled import Dialled, open_links
from orchestrator.phases.exercise import Crew
from orchestrator.phases.ground import Ground, expected_workdirs, plan_on
from orchestrator.phases.levels import measure_levels
from orchestrator.phases.mesh import measure_mesh
from orchestrator.phases.preflight import Proof, probe_nodes
from orchestrator.phases.push import begin_push
from orchestrator.phases.record import Record
from orchestrator.phases.run import new_run_id, run_on
from orchestrator.phases.saved import read_answers, refuse_unmeasured, write_answers
from orchestrator.phases.script import check_script
from orchestrator.phases.signals import Terminated, caught_signals
from orchestrator.plan.environment import named_interfaces
from orchestrator.settings import Settings, render_origins
from orchestrator.transport import Link
from orchestrator.values import EnvValue, Exit, Finding, Node


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
            run_id = "" if only_shown else new_run_id(settings.label)
            ground = survey_nodes(nodes, settings, env, talk, undo, run_id, dialled)
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


def check(settings: Settings, dialled: Dialled | None = None) -> int:
    """Ask every node whether a launch would work, and say what to do where not."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    talk.detail(render_origins(settings))
    refuse_unknown_checks(settings)
    refuse_idle_checks(settings)
    with ExitStack() as undo:
        if settings.from_facts is not None:
            facts: Sequence[Facts]
            findings: Sequence[Finding]
            nodes, facts, survey = read_answers(settings.from_facts)
            refuse_unmeasured(survey, settings)
            findings = run_checks(nodes, facts, survey, settings, settings.check_level)
        else:
            nodes = read_nodes(settings)
            if settings.script or settings.module:
                check_script(settings)
            env = settings_env(settings, os.environ)
            ground = survey_nodes(nodes, settings, env, talk, undo, dialled=dialled)
            facts, findings, survey = ground.facts, ground.findings, ground.survey
        every = settings.every_finding or settings.verbosity > 0
        talk.show(render_checks(nodes, findings, every=every, strict=settings.strict))
        for table in render_measured(nodes, survey):
            talk.show(table)
        if settings.json_output:
            talk.document(checks_document(nodes, facts, findings, strict=settings.strict, survey=survey))
        return int(Exit.DONE if is_ready(findings, strict=settings.strict) else Exit.NOT_READY)


def list_checks(*, as_json: bool) -> int:
    """Print every check: what it looks at, what is fail and what is warn."""
    if as_json:
        sys.stdout.write(json.dumps(catalogue_document(), indent=2) + "\n")
    else:
        sys.stdout.write(render_catalogue())
    return int(Exit.DONE)


def read_nodes(settings: Settings) -> tuple[Node, ...]:
    """Read the node list and take the nodes that are meant; contact nobody yet."""
    return select_nodes(read_node_list(settings.nodes), settings.include, settings.exclude)


def refuse_unknown_checks(settings: Settings) -> None:
    """Refuse names of checks, and rules for them, that there are not."""
    check_names_exist(settings.checks_skip, settings.origins["checks_skip"], skipped=True)
    check_names_exist(settings.checks_only, settings.origins["checks_only"])
    check_rules_fit(settings)


def survey_nodes(
    nodes: Sequence[Node],
    settings: Settings,
    env: tuple[EnvValue, ...],
    talk: Talk,
    undo: ExitStack,
    run_id: str = "",
    dialled: Dialled | None = None,
) -> Ground:
    """Connect to every node, ask it, prove the addresses, measure what the level asks for, and judge.

    With the id of a run its code is looked at meanwhile; nothing of that is left when the run does not come.
    """
    size, names = count(len(nodes), "node"), [node.name for node in nodes]
    with talk.waiting(f"connecting to {size}", names) as done:
        links = open_links(nodes, settings, done, dialled)
    # The run may replace a link that broke: close what is in the list at the end.
    undo.callback(close_links, links)
    ahead = ask_ahead(links, nodes, settings, undo)
    with talk.waiting(f"asking {size}", names) as done:
        answers = probe_nodes(links, settings, done, env)
    facts = [answer.facts for answer in answers]
    begun = begin_push(links, settings, run_id, undo) if run_id else None
    if settings.save_facts is not None:
        # Already now: a node that is lost in what follows must not cost the report.
        write_answers(settings.save_facts, nodes, answers, Survey())
    with talk.waiting(f"proving the addresses of {size}"):
        proof, mesh = prove_ways(links, nodes, facts, settings, ahead)
    named = tuple(named_interfaces(node, rank, env) for rank, node in enumerate(nodes))
    survey = Survey(reach=proof.reach, named_interfaces=named)
    if proof.places and settings.check:
        with talk.waiting(f"trying the ways between {size}"):
            survey = survey.model_copy(update={"mesh": mesh or measure_mesh(links, nodes, proof.places, settings)})
    if settings.check_level > 0:
        survey = measure_under_load(nodes, links, facts, proof, survey, settings, env, talk)
    if settings.save_facts is not None:
        write_answers(settings.save_facts, nodes, answers, survey)
    findings = run_checks(nodes, facts, survey, settings, settings.check_level)
    return Ground(
        settings=settings,
        nodes=nodes,
        links=links,
        facts=facts,
        proof=proof,
        survey=survey,
        findings=findings,
        env=env,
        begun=begun,
    )


def measure_under_load(
    nodes: Sequence[Node],
    links: Sequence[Link],
    facts: Sequence[Facts],
    proof: Proof,
    survey: Survey,
    settings: Settings,
    env: tuple[EnvValue, ...],
    talk: Talk,
) -> Survey:
    """Run what the level asks for beyond facts; what had to be well before and is not, keeps it from running."""
    # What --only leaves out has to be well all the same.
    found = run_checks(nodes, facts, survey, settings.model_copy(update={"checks_only": ()}))
    crew = Crew(links=links, nodes=nodes, facts=facts, places=proof.places, settings=settings, env=env)
    return measure_levels(crew, survey, found, settings.check_level, talk.say)


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
