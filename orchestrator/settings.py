"""The settings of one call: flag > AORTA_LAUNCH_* variable > config > default, and who won."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator import kinds
from orchestrator.config import ConfigFile, read_config
from orchestrator.errors import ConfigError, UsageError
from orchestrator.setting_names import VARIABLE_PREFIX, config_name, flag_name, variable_name

NOT_IN_CONFIG = frozenset(
    {
        *("config", "config_text", "origins", "json_output", "verbosity"),
        *("flag_env", "detach", "dry_run", "print_commands"),
        *("checks_only", "check_level", "strict", "every_finding", "save_facts", "from_facts"),
    }
)
"""What belongs to one call, not to a file that many calls share."""

NOT_IN_VARIABLES = frozenset(
    {"config_text", "origins", "flag_env", "env", "script", "module", "args", "checks", "require_paths"}
)

CHECK_FLAGS = frozenset({"--level", "--only", "--save-facts", "--from-facts"})
"""Those that launch does not have."""


class Settings(BaseModel):
    """The final values of one call, in the words of the `launch:` section."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: kinds.FilePath = Field(Path("node_ip_list.txt"), description="The node list.")
    include: kinds.Names = Field((), description="Only these nodes: names, ranges like node[1-4], node ranks like 0-3.")
    exclude: kinds.Names = Field((), description="Without these nodes: names, ranges, node ranks.")

    user: kinds.MaybeText = Field(None, description="SSH user, where the node list names none.")
    ssh_port: kinds.MaybePort = Field(None, description="SSH port, where the node list names none.")
    identity: kinds.MaybePath = Field(None, description="SSH key file, where the node list names none.")
    connect_timeout_s: kinds.SomeSeconds = Field(10.0, description="Time for one node to let us in.")
    fanout: kinds.Count = Field(64, description="Nodes that are worked on at the same time.")
    accept_new_host_keys: kinds.Switch = Field(False, description="Trust and remember host keys not seen before.")

    script: kinds.MaybeText = Field(None, description="The training script, relative to the project.")
    module: kinds.MaybeText = Field(None, description="A module to run instead of a script.")
    args: kinds.Words = Field((), description="Words for the script; {config}, {output_dir}, {run_id}, {node_rank}.")
    agent: kinds.Agent = Field(
        "torchrun", description="What starts the ranks of a node: torchrun, accelerate, command."
    )
    command: kinds.CommandWords = Field(
        (),
        description="Words for agent: command; {python}, {master_addr}, {master_port}, {nnodes}, {nproc_per_node}, {world_size}, {first_rank} and those of args.",
    )
    equal_nodes: kinds.Switch = Field(False, description="Refuse nodes with unequal numbers of processes.")
    nproc_per_node: kinds.Processes = Field("auto", description="Processes a node: auto, gpu, cpu or a number.")
    master_port: kinds.MaybePort = Field(None, description="Rendezvous port on the head; null: a free one.")
    timeout_s: kinds.MaybeSeconds = Field(None, description="Stop the run after this time; null: never.")
    grace_s: kinds.Seconds = Field(30.0, description="Time between TERM and KILL when a run is stopped.")
    failure_grace_s: kinds.Seconds = Field(2.0, description="The same, after a rank has failed.")
    lost_after_s: kinds.SomeSeconds = Field(60.0, description="Silence after which a node counts as lost.")
    on_disconnect: kinds.OnDisconnect = Field("keep", description="What nodes do without a controller: keep, stop.")
    lease_s: kinds.SomeSeconds = Field(600.0, description="With stop: how long it goes on without one.")
    log_space_mib: kinds.CountOrZero = Field(2048, description="Most that a run's logs keep on a node; 0: all.")
    join_timeout_s: kinds.SomeSeconds = Field(180.0, description="Time for all agents to meet.")
    hang_after_s: kinds.SomeSeconds = Field(600.0, description="No output and no step for so long, all idle: a hang.")
    hang_grace_s: kinds.SomeSeconds = Field(900.0, description="From the start to the first step nothing is judged.")
    hang_action: kinds.HangAction = Field("warn", description="What comes of a hang: warn, stop (exit code 1) or off.")
    rank_hook: kinds.Switch = Field(
        False, description="A hook of ours in every rank: error files without @record, stacks without ptrace."
    )
    py_spy: kinds.MaybePath = Field(None, description="A py-spy of this machine for nodes that have none; null: found.")
    ranks: kinds.Ranks = Field("0", description="Ranks that the screen shows: 0, all or a list like 0,3-5.")

    env: kinds.Env = Field({}, description="Environment of the ranks; {config}, {output_dir}, {run_id}, {node_rank}.")
    env_file: kinds.MaybePath = Field(None, description="File of NAME=VALUE lines; its values are secret.")
    forward_env: kinds.Names = Field(
        ("NCCL_*", "RCCL_*", "GLOO_*", "TORCH_*", "HSA_*", "HIP_*", "WANDB_*", "HF_*"),
        description="Variables of this machine that travel to the ranks.",
    )
    python: kinds.MaybePython = Field(None, description="Interpreter on the nodes, an absolute path; null: found.")
    conda_env: kinds.MaybeText = Field(None, description="Conda environment whose interpreter is used.")

    project: kinds.FilePath = Field(Path(), description="The folder that is pushed to the nodes.")
    workdir: kinds.MaybeText = Field(None, description="Where it lies on a node; null: ~/.aorta/code/<project>.")
    push: kinds.Switch = Field(True, description="Push the project before the start.")
    push_warn_mib: kinds.Amount = Field(200.0, description="Warn when the project is larger.")
    push_warn_files: kinds.CountOrZero = Field(20000, description="Warn when it has more files.")
    ignore: kinds.Names = Field((), description="Patterns not to push, beside .gitignore and .aortaignore.")

    check: kinds.Switch = Field(True, description="Check the nodes before the start.")
    checks_skip: kinds.Names = Field((), description="Checks that are left out.")
    checks: kinds.Checks = Field({}, description="A check by name: severity, skip, reason, its thresholds.")
    require_paths: kinds.Words = Field((), description="Paths that must be there on every node.")
    require_commands: kinds.Names = Field((), description="Programs that must be on the PATH of every node.")

    label: kinds.Label = Field("multinode", description="First part of the run id.")
    experiments_dir: kinds.FilePath = Field(Path("experiments"), description="Where experiment directories are made.")
    color: kinds.Color = Field("auto", description="Colour on the screen: auto, always or never.")

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
    origins: Mapping[str, str] = {}


def config_keys() -> tuple[str, ...]:
    """List the settings that a config can hold, in the order of the example."""
    return tuple(key for key in Settings.model_fields if key not in NOT_IN_CONFIG)


def build_settings(flags: Mapping[str, Any], environ: Mapping[str, str], script_words: Sequence[str] = ()) -> Settings:
    """Build the settings of one call; a flag that was not given is None or absent.

    Raises:
        ConfigError: a value of the wrong kind, an unknown key or variable, a config that cannot be read.
        UsageError: words that do not fit together.
    """
    flags = {key: value for key, value in flags.items() if value is not None}
    sets = tuple(flags.pop("set", ()))
    values: dict[str, Any] = {}
    origins = dict.fromkeys((key for key in Settings.model_fields if key not in {"origins", "config_text"}), "default")
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


def _find_config(flags: Mapping[str, Any], variables: Mapping[str, str], sets: Sequence[str]) -> ConfigFile | None:
    if "config" in flags:
        return read_config(_judge("config", flags["config"], "flag --config"), sets)
    if "config" in variables:
        return read_config(_judge("config", variables["config"], f"variable {variable_name('config')}"), sets)
    if sets:
        raise UsageError(
            "there is no config to set it in",
            where=f"flag --set {sets[0]}",
            remedy="name the config with --config FILE",
        )
    return None


def _take_config(config: ConfigFile, values: dict[str, Any], origins: dict[str, str]) -> None:
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
        typed = isinstance(entry.value, bool) or not _takes_text(key)
        raw = entry.value if typed else entry.text
        values[key] = _judge(key, raw, entry.where, f"launch.{entry.key}: ")
        origins[key] = f"flag {entry.where}" if entry.where.startswith("--set") else f"config {entry.where}"
    if values.get("script") and values.get("module"):
        where = next(entry.where for entry in config.launch if entry.key == "module")
        raise ConfigError("launch.script and launch.module are both given", where=where, remedy="keep one of them")


def _takes_text(key: str) -> bool:
    # What a person wrote as 3.0e-4 or 007 reaches the script as those very characters.
    return Settings.model_fields[key].annotation not in (bool, int, float, float | None, int | None) and key not in (
        "color",
        "checks",
    )


def _read_variables(environ: Mapping[str, str]) -> dict[str, str]:
    known = {variable_name(key): key for key in Settings.model_fields if key not in NOT_IN_VARIABLES}
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


@cache
def _adapter(key: str) -> TypeAdapter[Any]:
    field = Settings.model_fields[key]
    annotated: Any = Annotated[(field.annotation, *field.metadata)]  # type: ignore[misc,unused-ignore]
    return TypeAdapter(annotated)


def _judge(key: str, raw: Any, where: str, named: str = "") -> Any:
    try:
        return _adapter(key).validate_python(raw)
    except ValidationError as error:
        cause = error.errors()[0].get("ctx", {}).get("error", error.errors()[0]["msg"])
        shown = "" if key in {"env", "flag_env"} else f", not {raw!r}"
        # A flag or a variable is named by `where`; of a key in the config that is only the file and the line.
        raise ConfigError(f"{named}expected {cause}{shown}", where=where, remedy=_how_to_set(where)) from None


def _how_to_set(where: str) -> str:
    if where.startswith("flag "):
        verb = "check" if where.removeprefix("flag ") in CHECK_FLAGS else "launch"
        return f"aorta-launch {verb} --help shows every flag"
    if where.startswith("variable "):
        return f"correct it, or unset {where.removeprefix('variable ')}"
    return "config/launch.example.yaml shows every key of the launch: section"
