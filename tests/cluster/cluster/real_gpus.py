"""Nodes that share out this machine's own GPUs: what each of them gets to see, and what keeps NCCL on the network."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from .programs import ClusterError
from .spec import Spec

HERE = Path(__file__).parent
FOLDERS = "/usr/bin:/usr/local/bin:/usr/local/nvidia/bin:/usr/lib/wsl/lib"
"""Where drivers put nvidia-smi when the PATH does not lead there."""
CARDS = Path("/proc/driver/nvidia/gpus")
NO_MULTICAST = ("NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1")
"""A group of NVLink's multicast would span what is to be two machines, and one that breaks can take the host's GPUs along."""


def find_smi() -> str:
    """Find this machine's nvidia-smi; empty where there is none."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=FOLDERS) or ""


def ask_smi(fields: str, limit_s: float | None = None) -> list[list[str]]:
    """Ask this machine's nvidia-smi for fields of every GPU; nothing where there is none."""
    smi = find_smi()
    if not smi:
        return []
    words = [smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{smi} gave no answer within {limit_s:g} s") from error
    if done.returncode:
        raise ClusterError(f"{smi} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[:300]}")
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def session_words(spec: Spec, k: int) -> list[str]:
    """What node k's sshd sets in every session on account of its GPUs."""
    own = dict(spec.shares).get(k)
    if own is None:
        return []
    # Ranks on one machine would go through shared memory and NVLink; NCCL tells machines apart by this.
    words = [f"CUDA_VISIBLE_DEVICES={own}", "CUDA_DEVICE_ORDER=PCI_BUS_ID", f"NCCL_HOSTID={spec.name(k)}"]
    return [*words, *NO_MULTICAST]


def hidden_cards(spec: Spec, k: int) -> list[Path]:
    """What the driver tells of the GPUs that are not node k's, as containers hide it."""
    own = dict(spec.shares).get(k)
    if own is None:
        return []
    # nvidia-smi writes a PCI domain with eight digits, the kernel with four.
    return [CARDS / bus[4:].lower() for index, bus in ask_smi("index,pci.bus_id") if index not in own.split(",")]


def smi_text(smi: str, own: str) -> str:
    """An nvidia-smi that tells of a share of the GPUs."""
    text = (HERE / "own_gpus.sh").read_text()
    return text.replace("@REAL@", shlex.quote(smi)).replace("@OWN@", shlex.quote(own))
