"""The words of `accelerate launch` on one node, and what it is told beside them."""

from __future__ import annotations

from orchestrator.plan.seat import AgentSeat
from orchestrator.plan.torchrun import build_newer_options

CONFIG_NAME = "accelerate.yaml"
CONFIG_TEXT = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: 'no'
debug: false
use_cpu: false
"""
"""Without a file of ours it would take, and ask about, what `accelerate config` once left in the user's home."""


def build_accelerate_words(seat: AgentSeat) -> tuple[str, ...]:
    """Build one node's line; its processes are the world's, evenly divided.

    Of one process in all it makes no group, and refuses --multi_gpu; of more this makes the torchrun inside it, which
    starts ranks without GPUs as well.
    """
    options = {
        "--config_file": str(seat.paths.root / CONFIG_NAME),
        "--num_machines": str(seat.node_count),
        "--machine_rank": str(seat.node_rank),
        "--num_processes": str(seat.world_size),
        "--main_process_ip": seat.master_host,
        "--main_process_port": str(seat.master_port),
        "--gpu_ids": "all",
        "--rdzv_backend": "static",
        "--rdzv_conf": seat.rdzv_conf,
        "--max_restarts": "0",
        "--monitor_interval": "0.1",
        "--log_dir": str(seat.paths.ranks),
        "--mixed_precision": "no",
        "--dynamo_backend": "no",
    }
    words = [seat.python, "-m", "accelerate.commands.launch", *(word for pair in options.items() for word in pair)]
    words += ["--multi_gpu", "--same_network"] if seat.world_size > 1 else []
    return (*words, *(("--module", *seat.script[1:]) if seat.script[0] == "-m" else seat.script))


def build_torchrun_values(seat: AgentSeat) -> dict[str, str]:
    """Build what the torchrun inside it has to know, and accelerate has no option for: torchrun reads PET_<OPTION>."""
    newer = {
        f"PET_{flag.removeprefix('--').replace('-', '_').upper()}": value
        for flag, value in build_newer_options(seat).items()
    }
    return {"PET_RDZV_ID": seat.run_name, "PET_REDIRECTS": "3", **newer}
