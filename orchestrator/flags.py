"""Every flag of the command line once: its key in the settings, its spelling, what it does."""

from __future__ import annotations

import inspect
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import OptionInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NODES = "Nodes"
_OUTPUT = "Output"
_RUN = "The run"
_ENVIRONMENT = "Environment of the ranks"
_CODE = "Code"
_CHECKS = "Checks"


def _text(spelling: str, metavar: str, text: str, panel: str) -> Any:
    return Annotated[str | None, typer.Option(spelling, metavar=metavar, help=text, rich_help_panel=panel)]


def _many(spelling: str, metavar: str, text: str, panel: str) -> Any:
    return Annotated[list[str] | None, typer.Option(spelling, metavar=metavar, help=text, rich_help_panel=panel)]


def build_switch(spelling: str, text: str, panel: str | None = None) -> Any:
    """Build a flag that is there or not."""
    return Annotated[
        bool | None, typer.Option(spelling, metavar=" ", help=text, rich_help_panel=panel, show_default=False)
    ]


# Values stay text here: the settings parse a flag, a variable and the config with the same parser.
SHARED: dict[str, Any] = {
    "nodes": _text("--nodes", "FILE", "The node list [dim](node_ip_list.txt)[/dim].", _NODES),
    "config": _text("--config", "FILE", "YAML config; its launch: section holds settings.", _NODES),
    "set": _many("--set", "KEY=VALUE", "Change a value in a copy of the config (repeat).", _NODES),
    "include": _many("--include", "NAMES", "Only these nodes: names, node\\[1-4], node ranks 0-3.", _NODES),
    "exclude": _many("--exclude", "NAMES", "Without these nodes.", _NODES),
    "user": _text("--user", "NAME", "SSH user, where the node list names none.", _NODES),
    "ssh_port": _text("--ssh-port", "PORT", "SSH port, where the node list names none.", _NODES),
    "identity": _text("--identity", "FILE", "SSH key, where the node list names none.", _NODES),
    "connect_timeout_s": _text("--connect-timeout", "TIME", "Time for a node to let us in [dim](10s)[/dim].", _NODES),
    "fanout": _text("--fanout", "N", "Nodes worked on at the same time [dim](64)[/dim].", _NODES),
    "accept_new_host_keys": build_switch("--accept-new-host-keys", "Trust host keys not seen before.", _NODES),
    "json_output": build_switch("--json", "JSON on stdout.", _OUTPUT),
    "quiet": build_switch("-q", "Say less.", _OUTPUT),
    "verbose": Annotated[
        int,
        typer.Option(
            "-v",
            count=True,
            metavar=" ",
            show_default=False,
            help="Say more, and which setting came from where.",
            rich_help_panel=_OUTPUT,
        ),
    ],
    "color": _text("--color", "WHEN", "auto, always or never [dim](auto)[/dim].", _OUTPUT),
}

LAUNCH: dict[str, Any] = {
    "agent": _text("--agent", "WORD", "torchrun, accelerate or command [dim](torchrun)[/dim].", _RUN),
    "command": _text("--command", "WORDS", "What each node runs, with --agent command.", _RUN),
    "equal_nodes": build_switch("--equal-nodes", "Refuse unequal numbers of processes.", _RUN),
    "nproc_per_node": _text("--nproc-per-node", "N", "auto, gpu, cpu or a number [dim](auto)[/dim].", _RUN),
    "master_port": _text("--master-port", "PORT", "Rendezvous port on the head [dim](a free one)[/dim].", _RUN),
    "label": _text("--label", "WORD", "First part of the run id [dim](multinode)[/dim].", _RUN),
    "timeout_s": _text("--timeout", "TIME", "Stop the run after 90s, 5m, 1h.", _RUN),
    "grace_s": _text("--grace", "TIME", "Time between TERM and KILL [dim](30s)[/dim].", _RUN),
    "hang_after_s": _text("--hang-after", "TIME", "Silence that may be a hang [dim](10m)[/dim].", _RUN),
    "hang_grace_s": _text("--hang-grace", "TIME", "Not judged before [dim](15m)[/dim].", _RUN),
    "hang_action": _text("--hang-action", "WORD", "warn, stop or off [dim](warn)[/dim].", _RUN),
    "rank_hook": build_switch("--rank-hook/--no-rank-hook", "Better stacks and error files [dim](no)[/dim].", _RUN),
    "check": build_switch("--check/--no-check", "Check the nodes first [dim](yes)[/dim].", _RUN),
    "detach": build_switch("--detach", "Give the shell back once every agent runs; see attach.", _RUN),
    "dry_run": build_switch("--dry-run", "Show the plan and change nothing anywhere.", _RUN),
    "print_commands": build_switch("--print-commands", "Print the exact line for each node.", _RUN),
    "experiments_dir": _text("--experiments-dir", "DIR", "Where experiments lie [dim](experiments)[/dim].", _RUN),
    "ranks": _text("--ranks", "LIST", "Ranks on the screen: 0, all, 0,3-5 [dim](0)[/dim].", _OUTPUT),
    "flag_env": _many("--env", "NAME[=VALUE]", "A variable for every rank (repeat).", _ENVIRONMENT),
    "env_file": _text("--env-file", "FILE", "NAME=VALUE lines; secret.", _ENVIRONMENT),
    "python": _text("--python", "PATH", "Interpreter on the nodes [dim](found)[/dim].", _ENVIRONMENT),
    "workdir": _text("--workdir", "DIR", "Where the code lies [dim](~/.aorta/code/<project>)[/dim].", _CODE),
    "push": build_switch("--push/--no-push", "Push the project first [dim](yes)[/dim].", _CODE),
}

CHECK: dict[str, Any] = {
    "check_level": _text("--level", "0|1|2", "0 facts, 1 collectives, 2 load [dim](0)[/dim].", _CHECKS),
    "checks_only": _many("--only", "NAMES", "Only these checks.", _CHECKS),
    "checks_skip": _many("--skip", "NAMES", "Leave these checks out.", _CHECKS),
    "strict": build_switch("--strict", "Warnings count as well.", _CHECKS),
    "every_finding": build_switch("--all", "Show every check, also what is well or does not apply.", _CHECKS),
    "list_checks": build_switch("--list", "List every check and end.", _CHECKS),
    "save_facts": _text("--save-facts", "DIR", "Keep the nodes' answers in a folder.", _CHECKS),
    "from_facts": _text("--from-facts", "DIR", "Judge kept answers; contact nobody.", _CHECKS),
}

REACH: dict[str, Any] = {
    key: flag for key, flag in SHARED.items() if key not in ("nodes", "include", "exclude", "json_output")
}
"""Those of a verb whose run knows its nodes."""
JSON: dict[str, Any] = {"json_output": SHARED["json_output"]}
"""Beside them for a verb that prints a document."""

_LOGS = "What is shown"
LOGS: dict[str, Any] = {
    "follow": Annotated[
        bool | None,
        typer.Option(
            "-f",
            "--follow",
            metavar=" ",
            help="Go on until the run is over.",
            show_default=False,
            rich_help_panel=_LOGS,
        ),
    ],
    "rank": _text("--rank", "LIST", "Ranks: all or 0,3-5 [dim](those of the launch)[/dim].", _LOGS),
    "node": _many("--node", "LIST", "All ranks and agents of these nodes (as --include).", _LOGS),
    "since": _text("--since", "TIME", "Only what came in the last 90s, 5m, 1h.", _LOGS),
    "stream": _text("--stream", "out|err|both", "Which stream [dim](both)[/dim].", _LOGS),
    "raw": build_switch("--raw", "The very bytes of one rank's stdout, or stderr with --stream err.", _LOGS),
}

CHECK_SCRIPT: Any = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SCRIPT]", help="The script that will run: what it imports is checked too."),
]

SCRIPT_WORDS: Any = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [ARGS]", help="What runs, or -m MODULE; all words behind it are its own."),
]


def add_verb(
    app: typer.Typer, flags: Mapping[str, Any]
) -> Callable[[Callable[[dict[str, Any]], int]], Callable[..., int]]:
    """Make a function of its flags a verb of the program, named as the function is (exec_ is exec)."""

    def register(body: Callable[[dict[str, Any]], int]) -> Callable[..., int]:
        def command(**given: Any) -> int:
            return body(given)

        command.__name__ = body.__name__
        command.__doc__ = body.__doc__
        command.__annotations__ = dict(flags)
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=0 if name == "verbose" else None,
                    annotation=annotation,
                )
                for name, annotation in flags.items()
            ]
        )
        app.command(name=body.__name__.rstrip("_"))(command)
        return command

    return register


def read_options(command: Any) -> dict[str, bool]:
    """Read of a verb's function which options it has, and whether a value follows each."""
    found: dict[str, bool] = {}
    for annotation in command.__annotations__.values():
        (option,) = annotation.__metadata__
        if isinstance(option, OptionInfo):
            takes_value = not (annotation.__origin__ == bool | None or option.count)
            # typer has the first spelling where, without Annotated, the default would stand.
            for spelling in (option.default, *(option.param_decls or ())):
                found |= dict.fromkeys(str(spelling).split("/"), takes_value)
    return found


def without_flags(info: Any) -> Any:
    """Copy what typer knows of a verb, without its flags."""

    def command() -> None:
        """Stand in for the verb where it is only listed."""

    command.__doc__ = info.callback.__doc__
    listed = copy(info)
    listed.callback = command
    return listed


class AsGiven:
    """In the place of typer's coercion: texts stay texts here, and the settings parse them."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Leave a value as it is; where several can be given there is a list."""
        del ctx
        several = param.multiple or param.nargs == -1
        if several:
            return () if value is None else list(value)
        return value


def spare_coercion(parser: Any, verb: str) -> None:
    """Keep typer from loading pydantic for flags that take texts or nothing; a typer that does it otherwise stays as it is."""
    context = typer.Context(parser, **parser.context_settings)
    command = parser.commands.get(verb)
    for owner in (parser, command) if command is not None else (parser,):
        for parameter in owner.get_params(context):
            annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
            plain = annotation in (str, list[str], bool) or getattr(parameter, "count", False)
            if plain and hasattr(parameter, "_runtime_param"):
                parameter._runtime_param = AsGiven()  # noqa: SLF001 - typer has no public way
