"""Nodes that share out this machine's own GPUs: what each of them gets to see, and what keeps NCCL on the network."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from .spec import Spec

HERE = Path(__file__).parent
FOLDERS = "/usr/bin:/usr/local/bin:/usr/local/nvidia/bin:/usr/lib/wsl/lib"
"""Where drivers put nvidia-smi when the PATH does not lead there."""
NO_MULTICAST = ("NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1")
"""A group of NVLink's multicast would span what is to be two machines, and one that breaks can take the host's GPUs along."""


def find_smi() -> str:
    """Find this machine's nvidia-smi; empty where there is none."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=FOLDERS) or ""


def session_words(spec: Spec, k: int) -> list[str]:
    """What node k's sshd sets in every session on account of its GPUs."""
    own = dict(spec.shares).get(k)
    if own is None:
        return []
    # Ranks on one machine would go through shared memory and NVLink; NCCL tells machines apart by this.
    return [f"CUDA_VISIBLE_DEVICES={own}", f"NCCL_HOSTID={spec.name(k)}", *NO_MULTICAST]


def smi_text(smi: str, own: str) -> str:
    """An nvidia-smi that tells of a share of the GPUs."""
    text = (HERE / "own_gpus.sh").read_text()
    return text.replace("@REAL@", shlex.quote(smi)).replace("@OWN@", shlex.quote(own))
