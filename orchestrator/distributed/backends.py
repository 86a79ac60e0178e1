"""What can carry the tensors of this rank, and how long the others are waited for."""

from __future__ import annotations

import math
import socket
from datetime import timedelta
from typing import Union

import torch
import torch.distributed as torch_distributed

from orchestrator.distributed.errors import DistributedError

TIMEOUT = timedelta(minutes=10)
"""Torch's own is up to 30 minutes: too long to wait for a rank that will not come."""
Timeout = Union[float, timedelta, None]


def read_timeout(timeout: Timeout) -> timedelta:
    """Read a time given in seconds or as a timedelta; None is the default.

    Raises:
        DistributedError: it is not a time, or not a positive one.
    """
    if timeout is None:
        return TIMEOUT
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, timedelta)):
        raise DistributedError(f"a timeout is given in seconds or as a timedelta, not as {timeout!r}")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if math.isnan(seconds) or seconds <= 0:
        raise DistributedError(f"a timeout of {timeout} leaves no time: give seconds above 0")
    # Torch counts it in milliseconds of 64 bits; nobody waits longer than a year.
    return timedelta(seconds=min(max(seconds, 0.001), 366 * 86400.0))


def choose_backend(asked: str | None, *, has_gpu: bool) -> str:
    """Choose what carries the tensors of this rank.

    Raises:
        DistributedError: this PyTorch, or this node, cannot do what was asked.
    """
    name = asked or ("nccl" if has_gpu else "gloo")
    there = {
        "nccl": torch_distributed.is_nccl_available,
        "gloo": torch_distributed.is_gloo_available,
        "mpi": torch_distributed.is_mpi_available,
    }
    if name not in there:
        hint = ' (RCCL on ROCm is called "nccl" in PyTorch)' if name == "rccl" else ""
        raise DistributedError(f"backend {name!r} is not known: nccl, gloo or mpi{hint}")
    host = socket.gethostname()
    if not there[name]():
        remedy = "build PyTorch with MPI, or take gloo" if name == "mpi" else "take gloo, or a PyTorch that has it"
        raise DistributedError(f"the PyTorch {torch.__version__} on {host} has no {name}: {remedy}")
    if name == "nccl" and not has_gpu:
        raise DistributedError(f"nccl needs a GPU and PyTorch sees none on {host}: take gloo, or a PyTorch for its GPU")
    return name
