"""The group that all ranks join, and each rank's place in it, said once."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from orchestrator.distributed import (
    DistributedError,
    NodeInfo,
    all_gather_object,
    all_reduce,
    distributed,
    stop_requested,
)
from workload.schema import Config, ConfigError

__all__ = [
    "NodeInfo",
    "all_gather_object",
    "all_reduce",
    "check_equal_nodes",
    "check_same_config",
    "joined_group",
    "stop_requested",
]

TIMEOUT_S = 120.0
"""Torch's own is up to 30 minutes: too long to wait for a rank that will not come."""
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


@contextlib.contextmanager
def joined_group(backend: str | None = None, timeout_s: float = TIMEOUT_S) -> Iterator[NodeInfo]:
    """Join the group that torchrun describes in the environment, say where this rank stands, leave it at the end.

    Raises:
        ConfigError: the environment or the backend is wrong, seen without asking the others.
    """
    if not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(os.environ):
        # Started by hand: a group of one, on any free port.
        os.environ.update(ALONE, MASTER_PORT="0")
    with contextlib.ExitStack() as stack:
        try:
            info = stack.enter_context(distributed(backend, timeout_s))
        except DistributedError as error:
            if error.__cause__ is not None:  # the others did not come
                raise
            raise ConfigError(str(error)) from None
        print(
            f"rank {info.rank} of {info.world_size} on node {info.node_rank} ({info.host}): "
            f"{info.device}, {info.backend}\n",
            end="",  # one write, so that no other rank's line comes between text and end
            flush=True,
        )
        yield info


def check_same_config(config: Config, info: NodeInfo) -> None:
    """Raise ConfigError on all ranks alike when they read other configs: an old file on one node; a collective."""
    told = all_gather_object((info.host, dataclasses.asdict(config)))
    host, first = told[0]
    for rank, (other_host, other) in enumerate(told):
        for section, keys in first.items():
            for key, value in keys.items():
                if other[section][key] != value:
                    raise ConfigError(
                        f"{section}.{key} is {value!r} for rank 0 on {host} and {other[section][key]!r} for rank {rank} "
                        f"on {other_host}: all need the same config"
                    )


def check_equal_nodes(info: NodeInfo) -> None:
    """Raise ConfigError on all ranks alike when nodes have different numbers of ranks; a collective."""
    sizes = dict(all_gather_object((info.node_rank, info.local_world_size)))
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{info.hostnames[node]} {count}" for node, count in sorted(sizes.items()))
        raise ConfigError(
            f"fsdp.sharding_strategy: hybrid_shard needs as many ranks on each node, here are {told}; "
            "start as many on each (launch.nproc_per_node), or take full_shard"
        )
