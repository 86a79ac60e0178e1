"""One run on nodes that are ready: push, then attempts of start and watch, then the verdict and what came of it."""

from __future__ import annotations

import secrets
import shutil
import string
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.checks.catalogue import run_checks
from orchestrator.errors import AortaError, NotReadyError
from orchestrator.output.checks_document import checks_document
from orchestrator.output.console import wants_color
from orchestrator.output.events import EventLog
from orchestrator.output.plan_text import render_plan
from orchestrator.output.printer import Printer
from orchestrator.output.screen import LogScreen, parse_ranks
from orchestrator.output.verdict_text import render_verdict, verdict_document
from orchestrator.output.wording import shorten_path
from orchestrator.phases.attempt import Attempt, Outcome, run_attempt
from orchestrator.phases.collect import collect_outputs
from orchestrator.phases.git import read_git
from orchestrator.phases.ground import Ground, expected_workdirs, plan_on
from orchestrator.phases.preflight import prove_addresses
from orchestrator.phases.push import push_code
from orchestrator.phases.record import Record, make_experiment, told_as_full_disk, write_json
from orchestrator.plan.build import build_run_id
from orchestrator.values import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.output.console import Talk
    from orchestrator.phases.signals import Signals
    from orchestrator.plan.paths import ExperimentPaths
    from orchestrator.values import Plan, Verdict

ATTEMPTS = 3
"""Whole starts, when somebody takes the rendezvous port between the check and torchrun."""
NAME = string.ascii_lowercase + string.digits


def new_run_id(label: str) -> str:
    """Make the name of a new run: the second it began and four characters of chance."""
    return build_run_id(label, datetime.now().astimezone(), "".join(secrets.choice(NAME) for _ in range(4)))


def run_on(ground: Ground, talk: Talk, signals: Signals, undo: ExitStack, environ: Mapping[str, str]) -> int:
    """Do one run to its end and give the exit code that tells it."""
    settings = ground.settings
    run_id = new_run_id(settings.label)
    plan = plan_on(ground, run_id, 1, expected_workdirs(ground))
    ranks = parse_ranks(settings.ranks, plan.world_size)
    paths = make_experiment(settings, run_id)
    record = Record(paths, settings, ground.nodes, run_id)
    record.note_facts(ground.facts)
    record.open()
    try:
        with told_as_full_disk(paths):
            log = EventLog(paths.events_jsonl, sys.stdout if settings.json_output else None)
        undo.callback(log.close)
        workdirs = bring_code(ground, record, talk, run_id)
        show_run(talk, plan, ground, paths)
        printer = start_printer(
            settings.json_output, ranks, plan, wants_color(settings.color, environ, terminal=sys.stdout.isatty())
        )
        undo.callback(printer.close)
        talk.clear_line = printer.clear_line
        attempt = Attempt(
            ground=ground,
            paths=paths,
            config_text=settings.config_text,
            log=log,
            show=printer.show,
            talk=talk,
            signals=signals,
            time_limit_s=settings.timeout_s,
        )
        plan, outcome = try_starts(attempt, plan, workdirs, record)
        printer.close()
        if printer.left_out:
            talk.warn(f"the screen was too slow for {printer.left_out:,} bytes of output; {paths.logs} holds all of it")
    except BaseException as error:
        record.fail(error)
        raise
    return finish(ground, plan, outcome.verdict, record, log, talk, signals)


def bring_code(ground: Ground, record: Record, talk: Talk, run_id: str) -> Sequence[str]:
    """Push the project and write down which code it was; give its folder on each node."""
    settings, paths = ground.settings, record.paths
    with told_as_full_disk(paths):
        write_json(paths.checks_json, checks_document(ground.nodes, ground.facts, ground.findings))
        if settings.config_text is not None:
            paths.config_yaml.write_text(settings.config_text, "utf-8")
    record.time("checked")
    with talk.waiting("bringing the code to the nodes"):
        pushed = push_code(ground.links, ground.facts, settings, run_id, talk.detail)
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


def start_printer(as_json: bool, ranks: frozenset[int] | None, plan: Plan, color: bool) -> Printer:  # noqa: FBT001
    """Start the thread that shows training output; with --json stdout belongs to the events."""
    screen = LogScreen(
        sys.stdout.buffer,
        ranks=frozenset() if as_json else ranks,
        world_size=plan.world_size,
        terminal=sys.stdout.isatty(),
        color=color,
        width=shutil.get_terminal_size().columns,
    )
    return Printer(screen)


def try_starts(attempt: Attempt, plan: Plan, workdirs: Sequence[str], record: Record) -> tuple[Plan, Outcome]:
    """Start, and start again with another port while somebody else is quicker to take it."""
    ground = attempt.ground
    for number in range(1, ATTEMPTS + 1):
        plan = plan_on(ground, plan.run_id, number, workdirs)
        record.note_plan(plan)
        with told_as_full_disk(attempt.paths):
            attempt.log.record("attempt", number=number, master_port=plan.master_port)
        outcome = run_attempt(attempt, plan)
        if not outcome.port_taken or ground.settings.master_port is not None or number == ATTEMPTS:
            return plan, outcome
        attempt.talk.warn(
            f"port {plan.master_port} was taken before torchrun could use it; starting again with another"
        )
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


def finish(
    ground: Ground, plan: Plan, verdict: Verdict, record: Record, log: EventLog, talk: Talk, signals: Signals
) -> int:
    """Say the verdict, bring home what the ranks wrote, and close the record."""
    if "address already in use" in verdict.cause.lower() and ground.settings.master_port is not None:
        verdict = replace(verdict, remedy=f"leave out --master-port {plan.master_port}: a free port is found")
    # -q is for good news.
    tell = talk.say if verdict.state == "succeeded" else talk.insist
    tell("")
    tell(render_verdict(verdict, plan, shorten_path(record.paths.root, Path.cwd())))
    with suppress(OSError):
        log.record("verdict", **verdict_document(verdict)["verdict"])
    record.end(verdict)
    signals.release()
    try:
        with talk.waiting("collecting the outputs"):
            errors = collect_outputs(ground.links, plan, record.paths, ground.settings)
    except KeyboardInterrupt:
        talk.warn(f"the outputs were not all collected; they lie on the nodes in {plan.nodes[0].run_folder}/outputs")
        return int(verdict.exit_code or Exit.INTERRUPTED)
    for error in errors:
        tell_missing(talk, error)
    record.time("collected")
    record.write()
    return verdict.exit_code


def tell_missing(talk: Talk, error: AortaError) -> None:
    """Say which outputs did not come; that does not change how the run ended."""
    remedy = f" · {error.remedy}" if error.remedy else ""
    talk.warn(f"{error}{remedy}")
