"""The verb check, and what a launch begins with too: nodes that are connected, asked and judged.

Apart from the other verbs: what starts and follows a run takes as long to load as a node takes to be asked.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from orchestrator.checks.catalogue import refuse_idle_checks, refuse_unknown_checks, run_checks
from orchestrator.environment import settings_env
from orchestrator.facts import Facts, Survey
from orchestrator.nodelist import read_node_list, select_nodes
from orchestrator.output.catalogue_text import catalogue_document, render_catalogue
from orchestrator.output.checks_document import checks_document
from orchestrator.output.checks_text import is_ready, render_checks
from orchestrator.output.console import Talk, build_talk
from orchestrator.output.measured import render_measured
from orchestrator.output.wording import count
from orchestrator.phases.ahead import ask_ahead, prove_ways
from orchestrator.phases.connect import close_links
from orchestrator.phases.dialled import Dialled, open_links
from orchestrator.phases.exercise import Crew
from orchestrator.phases.ground import Ground
from orchestrator.phases.levels import measure_levels
from orchestrator.phases.mesh import measure_mesh
from orchestrator.phases.preflight import Proof, probe_nodes
from orchestrator.phases.saved import read_answers, refuse_unmeasured, write_answers
from orchestrator.phases.script import check_script
from orchestrator.plan.environment import named_interfaces
from orchestrator.settings import Settings, render_origins
from orchestrator.transport import Link
from orchestrator.values import EnvValue, Exit, Finding, Node

if TYPE_CHECKING:
    from orchestrator.phases.begin import Begun


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


def survey_nodes(
    nodes: Sequence[Node],
    settings: Settings,
    env: tuple[EnvValue, ...],
    talk: Talk,
    undo: ExitStack,
    dialled: Dialled | None = None,
    begin: Callable[[Sequence[Link]], Begun] | None = None,
) -> Ground:
    """Connect to every node, ask it, prove the addresses, measure what the level asks for, and judge.

    What begins a push has the code looked at meanwhile; nothing of that is left when the run does not come.
    """
    size, names = count(len(nodes), "node"), [node.name for node in nodes]
    with talk.waiting(f"connecting to {size}", names) as done:
        links = open_links(nodes, settings, done, dialled)
    # The run may replace a link that broke: close what is in the list at the end.
    undo.callback(close_links, links)
    ahead = ask_ahead(links, nodes, settings, undo)
    begun = begin(links) if begin is not None else None
    with talk.waiting(f"asking {size}", names) as done:
        answers = probe_nodes(links, settings, done, env, ahead.ask, for_run=begin is not None)
    facts = [answer.facts for answer in answers]
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
