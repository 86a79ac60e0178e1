"""The processes of a node, as a value that can be compared: equal before and after means that nothing was left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from .life import Pids
from .spec import Spec


class Process(NamedTuple):
    """A process by what identifies it, and its words for the reader of a failed test."""

    pid: int
    """As the node counts."""
    started: int
    """Clock ticks after boot."""
    command: str


def read_process_table(spec: Spec, pids: Pids, k: int) -> frozenset[Process]:
    """All processes of a node but its first one, that one's sleep and the listening sshd, which are the node itself."""
    if not spec.namespaces:
        home = f"HOME={spec.home_on_node(k)}".encode()
        own = {pids[k][0]}
        return frozenset(p for p in read_all("/proc") if p.pid not in own and home in read_environ(p.pid))
    inside = read_all(f"/proc/{pids[k][0]}/root/proc")
    listener = read_listener(spec, k)
    return frozenset(p for p in inside if p.pid not in {1, listener} and p.command != "sleep 1000000")


def read_listener(spec: Spec, k: int) -> int:
    """The listening sshd by the node's count; 0 when there is none."""
    try:
        return int((spec.folder(k) / "sshd.pid").read_text())
    except (OSError, ValueError):
        return 0


def read_environ(pid: int) -> list[bytes]:
    """The environment of a process, as it was at its start."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def read_all(proc: str) -> list[Process]:
    """Every process that a /proc shows, zombies included."""
    found = []
    try:
        names = [entry.name for entry in os.scandir(proc) if entry.name.isdigit()]
    except OSError:
        return []  # a node that is off has no processes
    for name in names:
        try:
            stat = Path(proc, name, "stat").read_text()
            words = Path(proc, name, "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
        except OSError:
            continue
        head, tail = stat.rsplit(")", 1)
        fields = tail.split()
        command = words.decode(errors="replace") or f"[{head.split('(', 1)[1]}] {fields[0]}"
        found.append(Process(int(name), int(fields[19]), command))
    return found
