"""What the config asks of the machine, looked at before the group is joined: every rank refuses by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from orchestrator.distributed import DistributedError
from orchestrator.distributed.checkpoint_disk import refuse_place
from workload.schema import ConfigError

if TYPE_CHECKING:
    from workload.schema import Config

CHECKPOINTS = Path("~/.aorta/checkpoints")


def check_machine(config: Config) -> None:
    """Raise ConfigError for what this machine's PyTorch or devices cannot do."""
    # ROCm answers to the same name; whoever asks for gloo gets the CPU.
    on_gpu = torch.cuda.is_available() and config.distributed.backend in (None, "nccl")
    training = config.training
    if config.distributed.mode == "fsdp":
        try:
            from torch.distributed.fsdp import fully_shard  # noqa: F401, PLC0415 - since 2.6
        except ImportError:
            raise ConfigError(f"distributed.mode: fsdp needs PyTorch 2.6; here is {torch.__version__}") from None
        if config.fsdp.cpu_offload and not on_gpu:
            raise ConfigError("fsdp.cpu_offload: there is no GPU here to offload from")
    if training.mixed_precision == "bf16" and on_gpu and not torch.cuda.is_bf16_supported():
        raise ConfigError(f"training.mixed_precision: {torch.cuda.get_device_name()} has no bf16; use fp16 or none")
    if training.mixed_precision == "fp16" and not on_gpu:
        raise ConfigError("training.mixed_precision: fp16 needs a GPU; a CPU has bf16 and none")
    if config.dataloader.pin_memory and not on_gpu:
        raise ConfigError("dataloader.pin_memory: memory is pinned for a GPU, and there is none here")
    if config.distributed.backend == "nccl" and not on_gpu:
        raise ConfigError("distributed.backend: nccl needs a GPU, and there is none here")
    crashes = (
        torch.__version__.startswith("2.13.") and os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
    )
    if crashes and config.distributed.mode == "ddp" and not on_gpu:
        # A segmentation fault where DDP sets up its logger, without a word; found with 2.13.0.
        raise ConfigError(
            f"TORCH_DISTRIBUTED_DEBUG=DETAIL crashes DDP over gloo in PyTorch {torch.__version__}: take INFO, or "
            "distributed.mode: fsdp"
        )
    if config.compile.enabled:
        _check_compile_backend(config.compile.backend)


def _check_compile_backend(name: str) -> None:
    from torch._dynamo import list_backends  # noqa: PLC0415 - 2 s that only compiling needs

    known = list_backends(exclude_tags=())
    if name not in known:
        raise ConfigError(f"compile.backend: {name} is not known here; known are {', '.join(sorted(known))}")


def find_checkpoint_dir(given: str | None, config: Path | None) -> Path:
    """Find where checkpoints lie, outside of what is collected and pushed; ConfigError when it would not be."""
    base = CHECKPOINTS.expanduser()
    name = os.environ.get("AORTA_CONFIG_NAME") or (config.stem if config is not None else "defaults")
    try:
        asked = Path(given or name).expanduser()
        folder = Path(os.path.normpath(base / asked))
        folder.resolve()
        folder.exists()
    except (OSError, RuntimeError, ValueError) as error:  # nobody's home, links in a circle, a NUL, half a character
        raise ConfigError(f"checkpoint.dir: {given!a} is no folder that can be used: {error}") from None
    if not asked.is_absolute() and base not in folder.parents:
        raise ConfigError(f"checkpoint.dir: {given!a} leads out of {base}, where relative ones lie; give a whole path")
    try:
        refuse_place(folder)
    except DistributedError as error:
        raise ConfigError(f"checkpoint.dir: {folder}: {error}") from None
    return folder
