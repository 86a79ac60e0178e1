"""One run on nodes that are ready: push, then attempts of start and watch, then the verdict and what came of it."""

from __future__ import annotations

import secrets
import string
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.checks.catalogue import run_checks
from orchestrator.errors import NotReadyError
from orchestrator.output.checks_document import checks_document
from orchestrator.output.events import EventLog
from orchestrator.output.plan_text import render_plan
from orchestrator.output.printer import Printer
from orchestrator.output.screen import open_screen, parse_ranks
from orchestrator.output.wording import shorten_path
from orchestrator.phases.attempt import Attempt, Outcome, run_attempt
from orchestrator.phases.controller import controlling
from orchestrator.phases.finish import finish
from orchestrator.phases.follow import Desk
from orchestrator.phases.git import read_git
from orchestrator.phases.ground import Ground, expected_workdirs, plan_on
from orchestrator.phases.hang.guard import HangGuard
from orchestrator.phases.preflight import prove_addresses
from orchestrator.phases.push import push_code
from orchestrator.phases.record import Record, begin_experiment, told_as_full_disk, write_json
from orchestrator.plan.build import build_run_id
from orchestrator.values import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.output.console import Talk
    from orchestrator.phases.signals import Signals
    from orchestrator.phases.watch import Stage
    from orchestrator.plan.paths import ExperimentPaths
    from orchestrator.settings import Settings
    from orchestrator.values import Plan

Announce = Callable[[Record], None]
ATTEMPTS = 3
"""Whole starts, when somebody takes the rendezvous port between the check and torchrun."""
NAME = string.ascii_lowercase + string.digits


def new_run_id(label: str) -> str:
    """Make the name of a new run: the second it began and four characters of chance."""
    return build_run_id(label, datetime.now().astimezone(), "".join(secrets.choice(NAME) for _ in range(4)))


def run_on(
    ground: Ground,
    talk: Talk,
    signals: Signals,
    undo: ExitStack,
    environ: Mapping[str, str],
    announce: Announce | None = None,
) -> int:
    """Do one run to its end and give the exit code that tells it.

    With `announce` nobody watches: it is told the run once every agent has started.
    """
    settings = ground.settings
    first_id = ground.begun.run_id if ground.begun is not None else new_run_id(settings.label)
    plan_on(ground, first_id, 1, expected_workdirs(ground))  # what is wrong with it is told first
    ids = iter([first_id])
    paths = begin_experiment(settings, lambda: next(ids, "") or new_run_id(settings.label))
    run_id = paths.root.name
    record = Record(paths, settings, ground.nodes, run_id)
    record.note_facts(ground.facts)
    controller = undo.enter_context(controlling(record, signals))
    record.open()
    try:
        with told_as_full_disk(paths):
            # With --detach stdout belongs to the one document that names the run.
            log = EventLog(paths.events_jsonl, sys.stdout if settings.json_output and announce is None else None)
            talk.keep_in(paths.launch_log)
        undo.callback(log.close)
        plan = plan_on(ground, run_id, 1, bring_code(ground, record, talk, run_id))
        show_run(talk, plan, ground, paths)
        printer = start_printer(settings, plan, environ, shown=announce is None)
        undo.callback(printer.close)
        talk.clear_line = printer.clear_line
        hang = HangGuard(settings, record, printer.show)
        desk = Desk(paths=paths, log=log, talk=talk, controller=controller, hang=hang, time_limit_s=settings.timeout_s)
        attempt = Attempt(
            ground=ground, desk=desk, record=record, signals=signals, on_stage=Stages(ground, record, announce)
        )
        plan, outcome = try_starts(attempt, plan)
    except BaseException as error:
        record.fail(error)
        raise
    if outcome is None:
        return int(Exit.DONE)
    printer.close()
    if printer.left_out:
        talk.warn(f"the screen was too slow for {printer.left_out:,} bytes of output; {paths.logs} holds all of it")
    return finish(ground.links, settings, plan, outcome.verdict, record, desk, signals)


class Stages:
    """Mirrors on the launch host how far the nodes have come."""

    def __init__(self, ground: Ground, record: Record, announce: Announce | None) -> None:
        self._ground = ground
        self._record = record
        self._announce = announce

    def __call__(self, stage: Stage) -> None:
        """Take one step."""
        hold = self._ground.proof.hold
        if stage == "met" and hold is not None:
            hold.close()
        elif stage == "started" and self._announce is not None:
            self._announce(self._record)
        elif stage in ("running", "stopping"):
            self._record.write(state=stage)


def bring_code(ground: Ground, record: Record, talk: Talk, run_id: str) -> Sequence[str]:
    """Push the project and write down which code it was; give its folder on each node."""
    settings, paths = ground.settings, record.paths
    with told_as_full_disk(paths):
        write_json(paths.checks_json, checks_document(ground.nodes, ground.facts, ground.findings))
        if settings.config_text is not None:
            paths.config_yaml.write_text(settings.config_text, "utf-8")
    record.time("checked")
    record.write(state="pushing")
    with talk.waiting("bringing the code to the nodes"):
        pushed = push_code(ground.links, ground.facts, settings, run_id, talk.detail, ground.begun)
    for warning in pushed.warnings:
        talk.warn(warning)
    with told_as_full_disk(paths):
        record.note_code(pushed, read_git(settings.project))
    record.time("pushed")
    return pushed.workdirs


def show_run(talk: Talk, plan: Plan, ground: Ground, paths: ExperimentPaths) -> None:
    """Show what is about to start and where its results will lie."""
    talk.say(render_plan(plan, ground.facts, every=talk.verbosity > 0))
    talk.say(f"experiment {shorten_path(paths.root, Path.cwd())}")


def start_printer(settings: Settings, plan: Plan, environ: Mapping[str, str], *, shown: bool) -> Printer:
    """Start the thread that shows training output; with --json stdout belongs to the events."""
    ranks = parse_ranks(settings.ranks, plan.world_size) if shown and not settings.json_output else frozenset()
    return Printer(open_screen(sys.stdout.buffer, ranks, plan.world_size, settings.color, environ))


def try_starts(attempt: Attempt, plan: Plan) -> tuple[Plan, Outcome | None]:
    """Start, and start again with another port while somebody else is quicker to take it."""
    ground, desk = attempt.ground, attempt.desk
    workdirs = [node.workdir for node in plan.nodes]
    for number in range(1, ATTEMPTS + 1):
        plan = plan_on(ground, plan.run_id, number, workdirs)
        attempt.record.note_plan(plan)
        with told_as_full_disk(desk.paths):
            desk.log.record("attempt", number=number, master_port=plan.master_port)
        outcome = run_attempt(attempt, plan)
        if outcome is None or not outcome.port_taken:
            return plan, outcome
        if ground.settings.master_port is not None or number == ATTEMPTS:
            return plan, outcome
        desk.talk.warn(f"port {plan.master_port} was taken before torchrun could use it; starting again with another")
        desk.controller.unfollow()
        attempt.signals.release()
        ground = prove_again(ground)
        attempt = replace(attempt, ground=ground)
    raise AssertionError


def prove_again(ground: Ground) -> Ground:
    """Find and prove another port on the head."""
    if ground.proof.hold is not None:
        ground.proof.hold.close()
    proof = prove_addresses(ground.links, ground.nodes, ground.facts, ground.settings)
    survey = ground.survey.model_copy(update={"reach": proof.reach})
    proved = run_checks(ground.nodes, ground.facts, survey, ground.settings.model_copy(update={"check": False}))
    failed = next((finding for finding in proved if finding.status == "fail"), None)
    if failed is not None:
        raise NotReadyError(what=failed.detail, where=failed.check, remedy=failed.remedy)
    return replace(ground, proof=proof, survey=survey)
