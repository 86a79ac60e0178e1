"""Builds the command lines that a person types to mend something, fitted to the node and its system."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.facts import Facts
from orchestrator.values import Node


def on_node(node: Node, command: str, *, terminal: bool = False) -> str:
    """Build the line that runs a command on a node from the launch host; a terminal lets sudo ask."""
    if node.local:
        return command
    words = ["ssh", *(["-t"] if terminal else []), *(["-p", str(node.port)] if node.port else [])]
    words += ["-i", node.key] if node.key else []
    words += ["-J", node.jump] if node.jump else []
    return shlex.join([*words, f"{node.user}@{node.host}" if node.user else node.host, command])


def install(facts: Facts, package: str) -> str:
    """Build the command that installs a system package."""
    system = facts.os.lower()
    if any(name in system for name in ("fedora", "red hat", "rocky", "alma", "centos", "oracle", "amazon")):
        return f"sudo dnf install -y {package}"
    if any(name in system for name in ("suse", "sles")):
        return f"sudo zypper install -y {package}"
    if "alpine" in system:
        return f"sudo apk add {package}"
    return f"sudo apt-get install -y {package}"


def install_driver(facts: Facts, version: str = "") -> str:
    """Build the command that installs NVIDIA's driver: Ubuntu has a package a branch, Debian one for all."""
    if "ubuntu" not in facts.os.lower():
        return install(facts, "nvidia-driver")
    return install(facts, f"nvidia-driver-{version.partition('.')[0]}") if version else "sudo ubuntu-drivers install"


PACKAGES = {
    "cc": "gcc",
    "ib_write_bw": "perftest",
    "ibstat": "infiniband-diags",
    "ibv_devinfo": "ibverbs-utils",
    "mpirun": "openmpi-bin",
    "ninja": "ninja-build",
    "nvcc": "nvidia-cuda-toolkit",
    "pip": "python3-pip",
    "pip3": "python3-pip",
    "python": "python-is-python3",
    "taskset": "util-linux",
}
"""Commands that Debian has in a package of another name."""


def install_commands(facts: Facts, commands: Sequence[str]) -> str:
    """Build the command that installs what has these programs; of a path only the name says what that could be."""
    names = [command.rpartition("/")[2] for command in commands]
    return install(facts, " ".join(shlex.quote(PACKAGES.get(name, name)) for name in dict.fromkeys(names)))
