"""Finds out who holds a TCP port on this machine."""

from __future__ import annotations

import os

from orchestrator.node import processes
from orchestrator.node.probe_command import owner_of, read_text, user_name

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import List, Tuple

LISTEN = "0A"


def find_owner(port: int) -> str:
    """Name whoever listens on a port: pid, user and command, or what little can be seen."""
    holders = [
        holder for name in ("tcp", "tcp6") for holder in parse_holders(read_text(f"/proc/net/{name}", 1 << 24), port)
    ]
    for inode, _ in holders:
        for pid in processes.all_pids():
            if _has_socket(pid, inode):
                return f"pid {pid} ({owner_of(pid)}): {processes.command_of(pid)}"
    if holders:
        return f"a process of {user_name(holders[0][1])} that cannot be seen from here"
    return ""


def parse_holders(text: str, port: int) -> List[Tuple[str, int]]:
    """Read /proc/net/tcp: inode and user id of the sockets that listen on a port."""
    holders: List[Tuple[str, int]] = []
    for line in text.splitlines()[1:]:
        # Number, local and remote address, state, three of no interest, user id, one more, inode.
        _, local, _, state, _, _, _, uid, _, inode = line.split()[:10]
        if state == LISTEN and int(local.rpartition(":")[2], 16) == port:
            holders.append((inode, int(uid)))
    return holders


def _has_socket(pid: int, inode: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(f"{folder}/{name}") == f"socket:[{inode}]":
                return True
        except OSError:
            continue  # closed in the meantime
    return False
