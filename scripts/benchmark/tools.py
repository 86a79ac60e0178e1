"""The commands of aorta-launch and of what people use instead, in the words that a person would type."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from .nodes import BENCH_VENV, LAUNCHER_NAME, VENV, Nodes

CURVE = "KexAlgorithms=curve25519-sha256"
HERE = Path(__file__).resolve().parent


def aorta(*words: str | Path) -> list[str]:
    """aorta-launch as it is installed."""
    return [os.environ.get(LAUNCHER_NAME, str(VENV / "bin" / "aorta-launch")), *(str(word) for word in words)]


def clush(nodes: Nodes, command: str, *, curve: bool = False) -> list[str]:
    """Clustershell, all nodes at once; with OpenSSH's default key exchange or with the cheap one."""
    options = ["-o", f"-o {CURVE}"] if curve else []
    return ["clush", "-S", "-f", str(nodes.count), *options, "-w", nodes.hosts, command]


def pdsh(nodes: Nodes, command: str) -> list[str]:
    """Pdsh over ssh, all nodes at once; see `pdsh_environ` for another key exchange."""
    return ["pdsh", "-S", "-R", "ssh", "-f", str(nodes.count), "-w", nodes.hosts, command]


def pdsh_environ(*, curve: bool = False) -> dict[str, str | None]:
    """How pdsh is told options of ssh."""
    return {"PDSH_SSH_ARGS_APPEND": f"-o {CURVE}"} if curve else {}


def bare_paramiko(nodes: Nodes, command: str = "true") -> list[str]:
    """Paramiko alone, one thread a node; with `true` the floor."""
    spec = nodes.cluster.spec
    return [
        *(str(VENV / "bin" / "python"), "-I", str(HERE / "bare_paramiko.py")),
        *(str(spec.identity), str(spec.known_hosts), nodes.hosts, spec.user, command),
    ]


CLUSH_RANK = "$((${HOSTNAME#node} - 1))"
"""clush has no word for the place of a node in its list; people take the rank from the host's name."""
PDSH_RANK = "%n"


def torchrun(nodes: Nodes, python: str, rank: str, script: Sequence[str], port: int) -> str:
    """The command of one node, as people write it for a fan-out tool."""
    return (
        f"cd {nodes.shared} && {python} -m torch.distributed.run --nnodes {nodes.count} --node-rank {rank} "
        f"--nproc-per-node 1 --master-addr {nodes.addresses[0]} --master-port {port} {' '.join(script)}"
    )


def deepspeed(nodes: Nodes, script: Sequence[str], port: int) -> list[str]:
    """DeepSpeed's launcher over pdsh."""
    hostfile = nodes.project / "hostfile"
    hostfile.write_text("".join(f"{address} slots=1\n" for address in nodes.addresses))
    return [
        *(str(BENCH_VENV / "bin" / "deepspeed"), "--hostfile", str(hostfile), "--launcher", "pdsh"),
        *(
            "--no_ssh_check",
            "--no_local_rank",
            "--master_addr",
            nodes.addresses[0],
            "--master_port",
            str(port),
            *script,
        ),
    ]


def torchrunx(nodes: Nodes, script: Sequence[str]) -> list[str]:
    """torchrunx, which starts a function; ours runs the script."""
    return [nodes.python, str(nodes.shared / "torchrunx_start.py"), nodes.hosts, *script]


def read_machine() -> dict[str, str]:
    """What the figures depend on, of this machine."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.split(":", 1)[1].strip() for line in info if line.startswith("model name")}
    kib = int(next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line).split()[1])
    return {
        "kernel": platform.release(),
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": ", ".join(sorted(models)) or platform.machine(),
        "memory_gib": f"{kib / 1024**2:.0f}",
    }


def read_versions() -> dict[str, str]:
    """Every tool that takes part, by its own word."""
    asked = (
        "import importlib.metadata as m; print(*(m.version(n) for n in ('torch', 'torchrunx', 'deepspeed', 'fabric')))"
    )
    torch, torchrunx_version, deepspeed_version, fabric = say(
        [str(BENCH_VENV / "bin" / "python3"), "-c", asked]
    ).split()
    return {
        "aorta-launch": version("aorta-launch"),
        "Python": platform.python_version(),
        "paramiko": version("paramiko"),
        "OpenSSH": say(["ssh", "-V"]).split(",")[0].removeprefix("OpenSSH_"),
        "rsync": say(["rsync", "--version"]).split("\n", 1)[0].split("version", 1)[1].split()[0],
        "clush": say(["clush", "--version"]).split()[-1],
        "pdsh": say(["pdsh", "-V"]).split()[0].removeprefix("pdsh-"),
        "torch": torch,
        "torchrunx": f"{torchrunx_version} (fabric {fabric})",
        "deepspeed": deepspeed_version,
    }


def say(words: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """What a program says of itself, wherever it says it."""
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env)
    return (done.stdout + done.stderr).strip()
