"""The environment that the launcher gives to the agent of one node and to its ranks, with the origin of each value."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.environment import is_secret_name
from orchestrator.errors import ConfigError
from orchestrator.plan.paths import NodePaths
from orchestrator.plan.placeholders import NAMES, replace_placeholders, speaks_for_config
from orchestrator.plan.ranks import count_gpus
from orchestrator.values import EnvValue, Node

if TYPE_CHECKING:
    from orchestrator.facts import Facts

OURS = "aorta-launch"
"""The origin of what the launcher sets by itself."""

TORCHRUN = (
    "PET_*",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What torchrun reads as its own options, or sets for the ranks."""

CLEARED = (
    *(*TORCHRUN, "ROLE_*", "TORCHELASTIC_*", "TORCH_ELASTIC_WORKER_IDENTICAL", "AORTA_*"),
    # With it every rank goes on as a prompt after its end, reads the end of its input and fails.
    *("PYTHONINSPECT", "PYTHONSTARTUP"),
)
"""What is removed from the session that SSH opens on a node, before the environment of a run is laid over it."""

PROTECTED = (
    *TORCHRUN,
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_RUN_ID",
    "AORTA_RUN_ID",
    "AORTA_ATTEMPT",
    "AORTA_NODE_RANK",
    "AORTA_NNODES",
    "AORTA_HOSTS",
    "AORTA_OUTPUT_DIR",
    "AORTA_CONFIG",
    "AORTA_CONFIG_NAME",
    "AORTA_PUSHED",
)
"""What the launcher and torchrun set themselves: a value of the user's would be lost or would break the run."""

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""What names the interface of a node: ours, unless it is given."""

RECORDER_ENTRIES = "2000"
"""How many of its last collectives a rank remembers; the default of newer versions of torch."""
_RECORDER_TWINS = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
"""Two names of one value, the newer first."""
_RENAMED = (2, 11)
"""The first release of torch that was seen to go by the newer names alone."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VISIBLE = {"amd": "HIP_VISIBLE_DEVICES"}


def build_env(
    *,
    node: Node,
    facts: Facts,
    processes: int,
    interface: str,
    given: Iterable[EnvValue],
    run: Mapping[str, str],
    placeholders: Mapping[str, str],
    paths: NodePaths | None = None,
) -> tuple[EnvValue, ...]:
    """Lay the values over each other, lowest first: defaults, the user's, the node's line, what identifies the run.

    With the paths of a run folder its flight recorders write into it.

    Raises:
        ConfigError: a name is none, or belongs to the launcher or torchrun; a value holds a NUL.
    """
    values = {value.name: value for value in build_defaults(facts.cores, processes, interface)}
    if not count_gpus(node, facts, given := tuple(given)):
        values |= {value.name: value for value in build_cpu_values()}
    told = (*given, *build_node_values(node, facts.gpu_kind))
    if paths is not None:
        recorder = build_recorder_values(facts.torch_version, paths, {value.name for value in told})
        values |= {value.name: value for value in recorder}
    for value in told:
        check_env_value(value, run)
        values.pop(value.name, None)
        values[value.name] = _placed(value, placeholders)
    for name, text in run.items():
        values[name] = EnvValue(name=name, value=text, origin=OURS)
    return tuple(values.values())


def build_defaults(cores: int, processes: int, interface: str) -> tuple[EnvValue, ...]:
    """Build what a user may override: threads, unbuffered output, the interface that was proved."""
    texts = {"OMP_NUM_THREADS": str(max(1, cores // max(1, processes))), "PYTHONUNBUFFERED": "1"}
    if interface:
        # NCCL takes a bare name as a prefix (eth1 would match eth10); gloo takes it exactly and knows no "=".
        texts |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    return tuple(EnvValue(name=name, value=text, origin=OURS) for name, text in texts.items())


def build_cpu_values() -> tuple[EnvValue, ...]:
    """Build what a user may override on a node whose ranks see no GPU."""
    # An Accelerator without it joins the group there and then trains every rank alone, without a word.
    return (EnvValue(name="ACCELERATE_USE_CPU", value="true", origin=OURS),)


def build_recorder_values(torch_version: str | None, paths: NodePaths, told: AbstractSet[str]) -> tuple[EnvValue, ...]:
    """Build what lets torch's flight recorder tell of a hang; nothing under a name whose twin the user gives."""
    size, file = _RECORDER_TWINS
    # A newer torch warns on every rank of the old name; an older one makes no pipe without it.
    renamed = torch_version is not None and parse_release(torch_version) >= _RENAMED
    texts = {
        **dict.fromkeys(size[:1] if renamed else size, RECORDER_ENTRIES),
        file[0] if renamed else file[1]: f"{paths.diagnosis}/nccl_trace_rank_",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{paths.diagnosis}/nccl_pipe_rank_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    for twins in _RECORDER_TWINS:
        if told & set(twins):
            texts = {name: text for name, text in texts.items() if name not in twins}
    return tuple(EnvValue(name=name, value=text, origin=OURS) for name, text in texts.items())


def build_node_values(node: Node, gpu_kind: str) -> tuple[EnvValue, ...]:
    """Build what the node's line in the node list asks for; its env.NAME wins over its gpus."""
    origin = f"node list {node.where}".strip()
    texts: dict[str, str] = {}
    if node.gpus:
        texts[_VISIBLE.get(gpu_kind, "CUDA_VISIBLE_DEVICES")] = ",".join(node.gpus)
    texts |= dict(node.env)
    return tuple(
        EnvValue(name=name, value=text, origin=origin, secret=is_secret_name(name)) for name, text in texts.items()
    )


def named_interfaces(node: Node, node_rank: int, given: Iterable[EnvValue]) -> dict[str, str]:
    """Pick from what is given for a node the variables that name interfaces; the node's own line wins."""
    placeholders = {**dict.fromkeys(NAMES, ""), "node_rank": str(node_rank)}
    values = {value.name: _placed(value, placeholders) for value in given if value.name in INTERFACES}
    return {name: value.value for name, value in values.items()} | {
        name: text for name, text in node.env if name in INTERFACES
    }


def build_run_values(
    *,
    run_id: str,
    attempt: int,
    node_rank: int,
    addresses: Sequence[str],
    paths: NodePaths,
    config: Path | None,
    pushed: str,
) -> dict[str, str]:
    """Build what tells a rank which run it belongs to; no user can override it.

    Pushed is the folder of the node that a push brings to what the project is, empty where nothing is pushed.
    """
    values = {
        "AORTA_RUN_ID": run_id,
        "AORTA_ATTEMPT": str(attempt),
        "AORTA_NODE_RANK": str(node_rank),
        "AORTA_NNODES": str(len(addresses)),
        "AORTA_HOSTS": ",".join(addresses),
        "AORTA_OUTPUT_DIR": str(paths.outputs),
        "TORCHELASTIC_ERROR_FILE": str(paths.agent_error),
    }
    if pushed:
        values["AORTA_PUSHED"] = pushed
    if config is not None:
        values["AORTA_CONFIG"] = str(paths.config_yaml)
        # On a node every config has the same name.
        values["AORTA_CONFIG_NAME"] = config.stem
    return values


def check_env_value(value: EnvValue, ours: Container[str] = ()) -> None:
    """Refuse a name that no program could read, and one that is not the user's to set."""
    if not _NAME.fullmatch(value.name):
        raise ConfigError(
            f"{value.name!r} is no name of an environment variable",
            value.origin,
            "use letters, digits and underscores, no digit first",
        )
    if value.name in ours or any(fnmatchcase(value.name, pattern) for pattern in PROTECTED):
        raise ConfigError(
            f"{value.name} is set by the launcher on each node and cannot be given",
            value.origin,
            f"remove {value.name}",
        )
    if "\0" in value.value:
        raise ConfigError(
            f"the value of {value.name} holds a NUL byte", value.origin, "no process can be given it: encode it"
        )


def parse_release(version: str) -> tuple[int, int]:
    """Parse the first two numbers of a version; zeros where there are none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _placed(value: EnvValue, placeholders: Mapping[str, str]) -> EnvValue:
    if not speaks_for_config(value.origin):
        return value
    text = replace_placeholders(value.value, placeholders)
    return EnvValue(name=value.name, value=text, origin=value.origin, secret=value.secret)
