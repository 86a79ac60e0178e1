"""Brings py-spy to nodes that have none: into the run's own folder, where it goes with the run."""

from __future__ import annotations

import platform
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.phases.rsync import push_paths
from orchestrator.transport.fanout import try_each

if TYPE_CHECKING:
    from orchestrator.transport import Link
    from orchestrator.values import NodePlan

NAME = "py-spy"
CARRY_S = 12.0
"""It is some megabytes; whoever is slower goes without."""
WIDTH = 16
_ELF = b"\x7fELF"


def find_tool(named: Path | None) -> Path | None:
    """Find the py-spy of this machine: the named one, beside our own interpreter, or on the PATH."""
    found = [named] if named is not None else [Path(sys.executable).parent / NAME, shutil.which(NAME)]
    for place in found:
        if place is not None and _is_program(path := Path(place).expanduser().resolve()):
            return path
    return None


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.name == NAME and file.read(4) == _ELF
    except OSError:
        return False


def list_lacking(answers: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """List the nodes that have no py-spy, could run ours, and know of a rank no more than /proc tells."""
    return [
        node_rank
        for node_rank, answer in answers.items()
        if answer.get("py_spy") == ""
        and answer.get("machine") == platform.machine()
        and any(rank.get("how") == "proc" for rank in answer.get("ranks") or ())
    ]


def carry_tool(tool: Path, nodes: Sequence[NodePlan], links: Mapping[int, Link]) -> list[int]:
    """Copy py-spy into the run folders of some nodes at the same time; give those that have it in time."""
    done: list[int] = []
    folders = {node.node_rank: node.run_folder for node in nodes if node.node_rank in links}

    def carry(node_rank: int) -> None:
        push_paths(links[node_rank], tool.parent, f"{folders[node_rank]}/bin", [tool.name])
        done.append(node_rank)

    # A file system that hangs must not hold up what was asked for.
    thread = threading.Thread(target=lambda: try_each(carry, sorted(folders), WIDTH), name="py-spy", daemon=True)
    thread.start()
    thread.join(CARRY_S)
    return sorted(done)
