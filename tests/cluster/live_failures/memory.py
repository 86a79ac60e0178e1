"""A memory group of the kernel's own around a node, as around a container: what does not fit is killed for real."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import wait_for
from cluster.life import CGROUPS

from .stage import Stage

OLD = (CGROUPS / "memory").exists()
"""Version 1: one tree for each kind of group."""
ABOVE = CGROUPS / "memory" if OLD else CGROUPS


GREEDY = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
held = []
while True:
    held.append(os.urandom(1 << 20) * 8)
"""


def limit_memory(stage: Stage, k: int, mib: int) -> None:
    """Move all of a node into a memory group, let the node see the groups as any machine does, and take it back at the end."""
    group = make_group(f"{stage.cluster.spec.tag}-m{k}", mib)
    home = ABOVE / read_group(os.getpid()).lstrip("/")
    stage.undo.callback(leave, stage, k, group, home)
    move(stage, k, group)
    show_groups(stage, k)


def show_groups(stage: Stage, k: int) -> None:
    """Mount the control groups where a machine has them; a node of the tests sees none by itself."""
    v1 = "mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory && mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory"
    stage.sh(k, v1 if OLD else "mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    stage.undo.callback(
        stage.cluster.exec, k, ["sh", "-c", "umount /sys/fs/cgroup/memory 2>/dev/null; umount /sys/fs/cgroup"]
    )


def fill_neighbour(stage: Stage) -> int:
    """Have the kernel kill a process of another memory group on this machine; give its pid."""
    group = make_group(f"{stage.cluster.spec.tag}-mx", 32)
    words = [sys.executable, "-c", GREEDY, str(group / "cgroup.procs")]
    program = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert program.wait(60) == -signal.SIGKILL
    group.rmdir()
    return program.pid


def make_group(name: str, mib: int) -> Path:
    """Make a memory group with a limit, or skip the test."""
    if not OLD and "memory" not in (CGROUPS / "cgroup.subtree_control").read_text().split():
        pytest.skip("no memory group can be made here")
    group = ABOVE / name
    group.mkdir()
    (group / ("memory.limit_in_bytes" if OLD else "memory.max")).write_text(str(mib << 20))
    return group


def read_group(pid: int) -> str:
    """Read which memory group a process is in."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds == ("memory" if OLD else ""):
            return path
    return "/"


def move(stage: Stage, k: int, group: Path) -> None:
    """Move every process of a node."""
    for pid in stage.host_pids(k):
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))


def leave(stage: Stage, k: int, group: Path, home: Path) -> None:
    """Move the node's processes back and remove the group."""

    def remove() -> bool:
        move(stage, k, home)
        with contextlib.suppress(OSError):
            group.rmdir()
        return not group.exists()

    wait_for(remove, 20, f"{group} is gone")
