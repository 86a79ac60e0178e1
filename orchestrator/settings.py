"""The settings of one call: flag > AORTA_LAUNCH_* variable > config > default, and who won."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator import kinds
from orchestrator.errors import ConfigError, UsageError
from orchestrator.light_dataclass import dataclass
from orchestrator.setting_names import VARIABLE_PREFIX, config_name, flag_name, variable_name

if TYPE_CHECKING:
    from orchestrator.config import ConfigFile

NOT_IN_CONFIG = frozenset(
    {
        *("config", "json_output", "verbosity"),
        *("flag_env", "detach", "dry_run", "print_commands"),
        *("checks_only", "check_level", "strict", "every_finding", "save_facts", "from_facts"),
    }
)
"""What belongs to one call, not to a file that many calls share."""

NOT_IN_VARIABLES = frozenset({"flag_env", "env", "script", "module", "args", "checks", "require_paths"})

CHECK_FLAGS = frozenset({"--level", "--only", "--save-facts", "--from-facts"})
"""Those that launch does not have."""

FORWARDED = ("NCCL_*", "RCCL_*", "GLOO_*", "TORCH_*", "HSA_*", "HIP_*", "WANDB_*", "HF_*")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The final values of one call, in the words of the `launch:` section."""

    nodes: Annotated[kinds.FilePath, "The node list."] = Path("node_ip_list.txt")
    include: Annotated[kinds.Names, "Only these nodes: names, ranges like node[1-4], node ranks like 0-3."] = ()
    exclude: Annotated[kinds.Names, "Without these nodes: names, ranges, node ranks."] = ()

    user: Annotated[kinds.MaybeText, "SSH user, where the node list names none."] = None
    ssh_port: Annotated[kinds.MaybePort, "SSH port, where the node list names none."] = None
    identity: Annotated[kinds.MaybePath, "SSH key file, where the node list names none."] = None
    connect_timeout_s: Annotated[kinds.SomeSeconds, "Time for one node to let us in."] = 10.0
    fanout: Annotated[kinds.Count, "Nodes that are worked on at the same time."] = 64
    accept_new_host_keys: Annotated[kinds.Switch, "Trust and remember host keys not seen before."] = False

    script: Annotated[kinds.MaybeText, "The training script, relative to the project."] = None
    module: Annotated[kinds.MaybeText, "A module to run instead of a script."] = None
    args: Annotated[kinds.Words, "Words for the script; {config}, {output_dir}, {run_id}, {node_rank}."] = ()
    agent: Annotated[kinds.Agent, "What starts the ranks of a node: torchrun, accelerate, command."] = "torchrun"
    command: Annotated[
        kinds.CommandWords,
        "Words for agent: command; {python}, {master_addr}, {master_port}, {nnodes}, {nproc_per_node}, {world_size}, {first_rank} and those of args.",
    ] = ()
    equal_nodes: Annotated[kinds.Switch, "Refuse nodes with unequal numbers of processes."] = False
    nproc_per_node: Annotated[kinds.Processes, "Processes a node: auto, gpu, cpu or a number."] = "auto"
    master_port: Annotated[kinds.MaybePort, "Rendezvous port on the head; null: a free one."] = None
    timeout_s: Annotated[kinds.MaybeSeconds, "Stop the run after this time; null: never."] = None
    grace_s: Annotated[kinds.Seconds, "Time between TERM and KILL when a run is stopped."] = 30.0
    failure_grace_s: Annotated[kinds.Seconds, "The same, after a rank has failed."] = 2.0
    lost_after_s: Annotated[kinds.SomeSeconds, "Silence after which a node counts as lost."] = 60.0
    on_disconnect: Annotated[kinds.OnDisconnect, "What nodes do without a controller: keep, stop."] = "keep"
    lease_s: Annotated[kinds.SomeSeconds, "With stop: how long it goes on without one."] = 600.0
    log_space_mib: Annotated[kinds.CountOrZero, "Most that a run's logs keep on a node; 0: all."] = 2048
    join_timeout_s: Annotated[kinds.SomeSeconds, "Time for all agents to meet."] = 180.0
    hang_after_s: Annotated[kinds.SomeSeconds, "No output and no step for so long, all idle: a hang."] = 600.0
    hang_grace_s: Annotated[kinds.SomeSeconds, "From the start to the first step nothing is judged."] = 900.0
    hang_action: Annotated[kinds.HangAction, "What comes of a hang: warn, stop (exit code 1) or off."] = "warn"
    rank_hook: Annotated[
        kinds.Switch, "A hook of ours in every rank: error files without @record, stacks without ptrace."
    ] = False
    py_spy: Annotated[kinds.MaybePath, "A py-spy of this machine for nodes that have none; null: found."] = None
    ranks: Annotated[kinds.Ranks, "Ranks that the screen shows: 0, all or a list like 0,3-5."] = "0"

    env: Annotated[kinds.Env, "Environment of the ranks; {config}, {output_dir}, {run_id}, {node_rank}."] = field(
        default_factory=dict
    )
    env_file: Annotated[kinds.MaybePath, "File of NAME=VALUE lines; its values are secret."] = None
    forward_env: Annotated[kinds.Names, "Variables of this machine that travel to the ranks."] = FORWARDED
    python: Annotated[kinds.MaybePython, "Interpreter on the nodes, an absolute path; null: found."] = None
    conda_env: Annotated[kinds.MaybeText, "Conda environment whose interpreter is used."] = None

    project: Annotated[kinds.FilePath, "The folder that is pushed to the nodes."] = Path()
    workdir: Annotated[kinds.MaybeText, "Where it lies on a node; null: ~/.aorta/code/<project>."] = None
    push: Annotated[kinds.Switch, "Push the project before the start."] = True
    push_warn_mib: Annotated[kinds.Amount, "Warn when the project is larger."] = 200.0
    push_warn_files: Annotated[kinds.CountOrZero, "Warn when it has more files."] = 20000
    ignore: Annotated[kinds.Names, "Patterns not to push, beside .gitignore and .aortaignore."] = ()

    check: Annotated[kinds.Switch, "Check the nodes before the start."] = True
    checks_skip: Annotated[kinds.Names, "Checks that are left out."] = ()
    checks: Annotated[kinds.Checks, "A check by name: severity, skip, reason, its thresholds."] = field(
        default_factory=dict
    )
    require_paths: Annotated[kinds.Words, "Paths that must be there on every node."] = ()
    require_commands: Annotated[kinds.Names, "Programs that must be on the PATH of every node."] = ()

    label: Annotated[kinds.Label, "First part of the run id."] = "multinode"
    experiments_dir: Annotated[kinds.FilePath, "Where experiment directories are made."] = Path("experiments")
    color: Annotated[kinds.Color, "Colour on the screen: auto, always or never."] = "auto"

    config: kinds.MaybePath = None
    json_output: kinds.Switch = False
    verbosity: kinds.Verbosity = 0
    flag_env: kinds.Words = ()
    detach: kinds.Switch = False
    dry_run: kinds.Switch = False
    print_commands: kinds.Switch = False
    checks_only: kinds.Names = ()
    check_level: kinds.Level = 0
    strict: kinds.Switch = False
    every_finding: kinds.Switch = False
    save_facts: kinds.MaybePath = None
    from_facts: kinds.MaybePath = None
    config_text: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Let every value pass its kind's parser; a wrong one is a ValueError."""
        for key, kind in KINDS.items():
            object.__setattr__(self, key, kind.parse(getattr(self, key)))

    def model_copy(self, *, update: Mapping[str, Any]) -> "Settings":
        """Copy them with other values, which are of their kinds already."""
        changed = copy(self)
        vars(changed).update(update)
        return changed


KINDS: dict[str, kinds.Kind] = {
    one.name: one.type.__metadata__[0] for one in fields(Settings) if hasattr(one.type, "__metadata__")
}
"""What each setting takes; not of those that only say how the others came to be."""


def config_keys() -> tuple[str, ...]:
    """List the settings that a config can hold, in the order of the example."""
    return tuple(key for key in KINDS if key not in NOT_IN_CONFIG)


def build_settings(flags: Mapping[str, Any], environ: Mapping[str, str], script_words: Sequence[str] = ()) -> Settings:
    """Build the settings of one call; a flag that was not given is None or absent.

    Raises:
        ConfigError: a value of the wrong kind, an unknown key or variable, a config that cannot be read.
        UsageError: words that do not fit together.
    """
    flags = {key: value for key, value in flags.items() if value is not None}
    sets = tuple(flags.pop("set", ()))
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KINDS, "default")
    variables = _read_variables(environ)
    config = _find_config(flags, variables, sets)
    if config is not None:
        _take_config(config, values, origins)
    for key, value in variables.items():
        values[key], origins[key] = (
            _judge(key, value, f"variable {variable_name(key)}"),
            f"variable {variable_name(key)}",
        )
    for key, value in flags.items():
        values[key], origins[key] = _judge(key, value, f"flag {flag_name(key)}"), f"flag {flag_name(key)}"
    _take_script(script_words, values, origins)
    return Settings(**values, config_text=config.text if config else None, origins=origins)


def require_script(settings: Settings) -> None:
    """Refuse settings that name nothing to run.

    Raises:
        UsageError: neither a script nor a module is known.
    """
    if settings.script is None and settings.module is None and settings.agent != "command" and not settings.command:
        named = f"{settings.config} names neither launch.script nor launch.module" if settings.config else ""
        raise UsageError(
            "nothing to run" + (f": {named}" if named else ""),
            where="command line",
            remedy="name a script (train.py), a module (-m my.module), or launch.script in the config",
        )


def render_origins(settings: Settings) -> str:
    """Render who set what, one line a setting that is not at its default."""
    lines = []
    for key, origin in settings.origins.items():
        if origin == "default" or key in ("verbosity", "json_output"):
            continue
        value = getattr(settings, key)
        # Values of variables may be secret; their names never are.
        if key in {"env", "flag_env"}:
            value = tuple(word.partition("=")[0] for word in value)
        shown = " ".join(value) if isinstance(value, tuple) else str(value)
        lines.append(f"{key} = {shown}  ({origin})")
    return "\n".join(lines)


def _find_config(flags: Mapping[str, Any], variables: Mapping[str, str], sets: Sequence[str]) -> "ConfigFile | None":
    for given, where in ((flags, "flag --config"), (variables, f"variable {variable_name('config')}")):
        if "config" in given:
            from orchestrator.config import read_config  # noqa: PLC0415 - yaml is for those who have one

            return read_config(_judge("config", given["config"], where), sets)
    if sets:
        raise UsageError(
            "there is no config to set it in",
            where=f"flag --set {sets[0]}",
            remedy="name the config with --config FILE",
        )
    return None


def _take_config(config: "ConfigFile", values: dict[str, Any], origins: dict[str, str]) -> None:
    keys = {config_name(key): key for key in config_keys()}
    for entry in config.launch:
        key = keys.get(entry.key)
        if key is None:
            near = get_close_matches(entry.key, keys, n=1, cutoff=0.5)
            raise ConfigError(
                f"unknown key launch.{entry.key}" + (f", did you mean {near[0]}?" if near else ""),
                where=entry.where,
                remedy="config/launch.example.yaml names every key of the launch: section",
            )
        typed = isinstance(entry.value, bool) or KINDS[key].typed
        raw = entry.value if typed else entry.text
        values[key] = _judge(key, raw, entry.where, f"launch.{entry.key}: ")
        origins[key] = f"flag {entry.where}" if entry.where.startswith("--set") else f"config {entry.where}"
    if values.get("script") and values.get("module"):
        where = next(entry.where for entry in config.launch if entry.key == "module")
        raise ConfigError("launch.script and launch.module are both given", where=where, remedy="keep one of them")


def _read_variables(environ: Mapping[str, str]) -> dict[str, str]:
    known = {variable_name(key): key for key in KINDS if key not in NOT_IN_VARIABLES}
    found: dict[str, str] = {}
    for name, value in environ.items():
        if not name.startswith(VARIABLE_PREFIX) or not value:
            continue
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            raise ConfigError(
                "no such setting" + (f", did you mean {near[0]}?" if near else ""),
                where=f"variable {name}",
                remedy=f"unset {name}, or correct its name",
            )
        found[known[name]] = value
    return found


def _take_script(words: Sequence[str], values: dict[str, Any], origins: dict[str, str]) -> None:
    if not words:
        return
    is_module = words[0] == "-m"
    if is_module and len(words) == 1:
        raise UsageError("-m needs the name of a module", where="command line", remedy="write -m my.module")
    values["script"] = None if is_module else _judge("script", words[0], "command line")
    values["module"] = _judge("module", words[1], "command line") if is_module else None
    values["args"] = _judge("args", tuple(words[2 if is_module else 1 :]), "command line")
    for key in ("script", "module", "args"):
        origins[key] = "command line"


def _judge(key: str, raw: Any, where: str, named: str = "") -> Any:
    try:
        return KINDS[key].parse(raw)
    except ValueError as error:
        shown = "" if key in {"env", "flag_env"} else f", not {raw!r}"
        # A flag or a variable is named by `where`; of a key in the config that is only the file and the line.
        raise ConfigError(f"{named}expected {error}{shown}", where=where, remedy=_how_to_set(where)) from None


def _how_to_set(where: str) -> str:
    if where.startswith("flag "):
        verb = "check" if where.removeprefix("flag ") in CHECK_FLAGS else "launch"
        return f"aorta-launch {verb} --help shows every flag"
    if where.startswith("variable "):
        return f"correct it, or unset {where.removeprefix('variable ')}"
    return "config/launch.example.yaml shows every key of the launch: section"
