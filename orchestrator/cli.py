"""The command line: each verb is one function, and every error becomes text at one edge."""
# ruff: noqa: PLC0415 - heavy modules (pydantic, yaml, paramiko) are imported inside the verbs: --help has to be quick

from __future__ import annotations

import os
import sys
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator import __version__
from orchestrator.errors import AortaError, UsageError
from orchestrator.flags import (
    CHECK,
    CHECK_SCRIPT,
    LAUNCH,
    SCRIPT_WORDS,
    SHARED,
    add_verb,
    read_options,
    spare_coercion,
    without_flags,
)
from orchestrator.house_verbs import add_house_verbs
from orchestrator.light_imports import left_out
from orchestrator.log_verbs import add_log_verbs
from orchestrator.run_verbs import add_run_verbs
from orchestrator.stacks_verb import add_stacks_verb
from orchestrator.values import Exit
from orchestrator.why_verb import add_why_verb
from orchestrator.words import CallWords, split_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.settings import Settings

PROGRAM = "aorta-launch"
HELP_OPTIONS = ("--help", "-h")
TOP_OPTIONS = (*HELP_OPTIONS, "--version")
LAST_STREAM = 2

app = typer.Typer(
    name=PROGRAM,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": list(HELP_OPTIONS)},
    pretty_exceptions_enable=False,
)


@app.callback(epilog="The verb launch may be left out: [bold]aorta-launch --nodes FILE train.py --lr 3e-4[/bold]")
def show_program(
    *, version: Annotated[bool, typer.Option("--version", metavar=" ", help="Show the version.", is_eager=True)] = False
) -> None:
    """Launch torchrun on a list of bare machines over SSH, with one true verdict and nothing left behind."""
    del version  # main() answers it: no verb is there to run


@add_verb(app, {**SHARED, **LAUNCH, "words": SCRIPT_WORDS})
def launch(flags: dict[str, Any]) -> int:
    """Run a script on every node: check, push, start, watch, collect."""
    from orchestrator.settings import require_script

    settings = _build(flags)
    require_script(settings)
    from orchestrator.phases.dialled import dial_ahead

    with dial_ahead(settings, "orchestrator.actions") as dialled:
        from orchestrator import actions

        return actions.launch(settings, dialled)


@add_verb(
    app,
    {
        **SHARED,
        "nproc_per_node": LAUNCH["nproc_per_node"],
        "master_port": LAUNCH["master_port"],
        "flag_env": LAUNCH["flag_env"],
        "env_file": LAUNCH["env_file"],
        "python": LAUNCH["python"],
        "workdir": LAUNCH["workdir"],
        "push": LAUNCH["push"],
        **CHECK,
        "words": CHECK_SCRIPT,
    },
)
def check(flags: dict[str, Any]) -> int:
    """Ask every node whether a launch would work, and say what to do where not."""
    listing = flags.pop("list_checks")
    settings = _build(flags)
    if listing:
        from orchestrator import check_actions

        return check_actions.list_checks(as_json=settings.json_output)
    from orchestrator.phases.dialled import dial_ahead

    with dial_ahead(settings, "orchestrator.check_actions") as dialled:
        from orchestrator import check_actions

        return check_actions.check(settings, dialled)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one call and give its exit code; no exception leaves it."""
    fill_closed_streams()
    given = list(sys.argv[1:] if argv is None else argv)
    call = CallWords("", tuple(given))
    try:
        call = split_words(given, list_options(), TOP_OPTIONS, os.path.isfile)
        return _run(call)
    except AortaError as error:
        from orchestrator.output.errors import print_error

        return print_error(error, as_json=_wants_json(call))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone; what is still in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except Exception as error:  # noqa: BLE001 - the edge: a bug is told in one line as well
        from orchestrator.output.errors import print_internal_error

        return print_internal_error(error, as_json=_wants_json(call))


def fill_closed_streams() -> None:
    """Put /dev/null where a caller closed stdin, stdout or stderr (`>&-`).

    Python has None there, and the next socket would get the number that others write to.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= LAST_STREAM:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115 - open as long as we run


def _run(call: CallWords) -> int:
    if "--version" in call.options and not call.verb:
        typer.echo(f"{PROGRAM} {__version__}")
        return Exit.DONE
    words = [*([call.verb] if call.verb else []), *call.options, *(["--", *call.script] if call.script else [])]
    usage_error: Any = typer.BadParameter.__base__
    try:
        if any(word in HELP_OPTIONS for word in call.options):
            # Our help has no Markdown in it.
            with left_out("rich.markdown", "rich.traceback"):
                from typer import rich_utils  # noqa: F401 - typer is about to
        code = build_parser(call.verb).main(args=words, prog_name=PROGRAM, standalone_mode=False)
    except usage_error as error:
        message = " ".join(error.format_message().split())
        raise UsageError(message, "command line", f"see {PROGRAM} {call.verb} --help") from None
    except typer.Abort:
        return Exit.INTERRUPTED
    return int(code or 0)


def _build(flags: dict[str, Any]) -> Settings:
    from orchestrator.settings import build_settings

    try:
        os.getcwd()  # noqa: PTH109 - all that we ask is whether there is one
    except FileNotFoundError:
        raise UsageError("the current folder has been deleted", "command line", "change to one that exists") from None
    quiet, verbose = flags.pop("quiet"), flags.pop("verbose")
    if quiet and verbose:
        raise UsageError("-q and -v exclude each other", "command line", "choose one of them")
    flags["verbosity"] = -1 if quiet else verbose or None
    words = flags.pop("words", None) or ()
    return build_settings({key: value for key, value in flags.items() if value != []}, os.environ, words)


add_run_verbs(app, _build)
add_stacks_verb(app, _build)
add_log_verbs(app, _build)
add_why_verb(app, _build)
add_house_verbs(app, _build)


def build_parser(verb: str) -> Any:
    """Build the parser of one verb; of the others it knows name and help, for all of their flags take longer than a verb."""
    lean = copy(app)
    lean.registered_commands = [info if info.name == verb else without_flags(info) for info in app.registered_commands]
    parser = typer.main.get_command(lean)
    spare_coercion(parser, verb)
    return parser


def list_options() -> dict[str, dict[str, bool]]:
    """List every verb's options and whether a value follows, as typer's parser will have them."""
    return {
        str(info.name): dict.fromkeys(HELP_OPTIONS, False) | read_options(info.callback)
        for info in app.registered_commands
    }


def _wants_json(call: CallWords) -> bool:
    variable = os.environ.get("AORTA_LAUNCH_JSON_OUTPUT", "")
    return "--json" in call.options or variable.lower() in {"1", "true", "yes", "on"}
