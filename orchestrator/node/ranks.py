"""Watches the ranks of the agent: children of it that carry LOCAL_RANK, each held by a pidfd until it ends."""

from __future__ import annotations

import os

from orchestrator.node import cgroups, clock, exit_status, processes
from orchestrator.node.probe_command import read_text

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

FOLDER = "ranks"
"""Below the run folder: torchrun makes a folder in it before it starts ranks."""
BLIND_S = 0.5


class RankWatch:
    """Finds the ranks below the agent and tells how each of them ended."""

    def __init__(self, root: str = cgroups.ROOT) -> None:
        self._root = root
        self.handles: dict[int, dict[str, Any]] = {}
        """pidfd -> what is known of the rank."""
        self._memory: dict[int, tuple[str, int | None]] = {}
        """pidfd -> its control groups, and how many processes of them had been killed for memory when it came."""
        self._judged: set[tuple[int, int]] = set()
        self.seen = 0
        self._folder_before = changed_ns(FOLDER)
        self._next_blind = 0.0

    def may_be_there(self, now: float) -> bool:
        """Tell whether to look for ranks: to do so all the while that an agent imports PyTorch would cost it time."""
        if self.seen or now >= self._next_blind or changed_ns(FOLDER) != self._folder_before:
            self._next_blind = now + BLIND_S
            return True
        return False

    def find(self, pids: Iterable[int]) -> list[dict[str, Any]]:
        """Look for new ranks among some processes; give an event for each."""
        events = []
        for pid in pids:
            process = processes.read_process(pid)
            if process is None or (pid, process.ticks) in self._judged:
                continue
            environ = processes.environ_of(pid)
            if not (environ.get(b"LOCAL_RANK", b"").isdigit() and environ.get(b"RANK", b"").isdigit()):
                # Between fork and exec a rank still shows the agent's environment: look again next time.
                continue
            self._judged.add((pid, process.ticks))
            event = self._hold(process, environ)
            if event is not None:
                events.append(event)
        return events

    def _hold(self, process: processes.Process, environ: dict[bytes, bytes]) -> dict[str, Any] | None:
        rank = {
            "pid": process.pid,
            "ticks": process.ticks,
            "rank": int(environ[b"RANK"]),
            "local_rank": int(environ[b"LOCAL_RANK"]),
            "world_size": int(world) if (world := environ.get(b"WORLD_SIZE", b"")).isdigit() else -1,
        }
        try:
            handle = processes.open_handle(process.pid)
        except OSError:
            return None
        self.handles[handle] = rank
        groups = read_text("/proc/%d/cgroup" % process.pid)
        self._memory[handle] = groups, cgroups.oom_kills(groups, self._root)
        self.seen += 1
        return {"ev": "rank", "time": clock.now(), **rank}

    def ended(self, handle: int) -> dict[str, Any]:
        """Tell how a rank ended; code and signal are None where its agent has reaped it and the kernel is an old one."""
        rank = self.handles.pop(handle)
        ending = exit_status.describe_code(exit_status.read_exit_code(handle, rank["pid"], rank["ticks"]))
        os.close(handle)
        event = {"ev": "rank_exit", "time": clock.now(), **ending, **rank}
        groups, before = self._memory.pop(handle)
        after = cgroups.oom_kills(groups, self._root) if before is not None else None
        if before is not None and after is not None and after > before:
            event["oom_kills"] = after - before
        return event

    def signal(self, number: int) -> list[int]:
        """Signal every rank that runs; give the ranks that were there to take it."""
        taken = []
        for handle, rank in self.handles.items():
            try:
                processes.signal_handle(handle, number)
                taken.append(rank["rank"])
            except OSError:
                pass
        return sorted(taken)


def changed_ns(path: str) -> int:
    """Give the time at which something was made in a folder last; 0 when there is no such folder."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
