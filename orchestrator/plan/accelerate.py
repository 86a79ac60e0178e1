"""The words of `accelerate launch` on one node, and what it is told beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.plan.paths import NodePaths

if TYPE_CHECKING:
    from orchestrator.settings import Settings

CONFIG_NAME = "accelerate.yaml"
CONFIG_TEXT = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: 'no'
debug: false
use_cpu: false
"""
"""Without a file of ours it would take, and ask about, what `accelerate config` once left in the user's home."""


def build_accelerate_words(
    *,
    python: str,
    settings: Settings,
    node_count: int,
    node_rank: int,
    world_size: int,
    master_addr: str,
    master_port: int,
    paths: NodePaths,
    script: Sequence[str],
) -> tuple[str, ...]:
    """Build one node's line; its processes are the world's, evenly divided.

    Of one process in all it makes no group, and refuses --multi_gpu; of more this makes the torchrun inside it, which
    starts ranks without GPUs as well.
    """
    options = {
        "--config_file": str(paths.root / CONFIG_NAME),
        "--num_machines": str(node_count),
        "--machine_rank": str(node_rank),
        "--num_processes": str(world_size),
        "--main_process_ip": f"[{master_addr}]" if ":" in master_addr else master_addr,
        "--main_process_port": str(master_port),
        "--gpu_ids": "all",
        "--rdzv_backend": "static",
        "--rdzv_conf": f"timeout={math.ceil(settings.join_timeout_s)}",
        "--max_restarts": "0",
        "--monitor_interval": "0.1",
        "--log_dir": str(paths.ranks),
        "--mixed_precision": "no",
        "--dynamo_backend": "no",
    }
    words = [python, "-m", "accelerate.commands.launch", *(word for pair in options.items() for word in pair)]
    words += ["--multi_gpu", "--same_network"] if world_size > 1 else []
    return (*words, *(("--module", *script[1:]) if script[0] == "-m" else script))


def build_torchrun_values(run_name: str, settings: Settings, torchrun_flags: Sequence[str]) -> dict[str, str]:
    """Build what the torchrun inside it has to know, and accelerate has no option for."""
    values = {"PET_RDZV_ID": run_name, "PET_REDIRECTS": "3"}
    newer = {
        "--shutdown-timeout": ("PET_SHUTDOWN_TIMEOUT", str(math.ceil(settings.grace_s))),
        "--signals-to-handle": ("PET_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT"),
    }
    return values | dict(pair for flag, pair in newer.items() if flag in torchrun_flags)
