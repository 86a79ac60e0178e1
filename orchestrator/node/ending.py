"""Ends process trees on this node, and proves that nothing is left of them."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import os
import time

from orchestrator.node import processes
from orchestrator.node.processes import Process

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Find = Callable[[], "list[Process]"]

UNKILLABLE_AFTER_S = 10.0
"""A process that outlives KILL for so long hangs in the kernel (state D); waiting longer changes nothing."""
OVERDUE_S = 2 * UNKILLABLE_AFTER_S + 5.0
"""Beyond the grace: a supervisor that has not ended by then hangs, and is ended like the rest."""
TWICE = 2
"""Empty once may be the moment between a fork and its child's first look."""


def living(found: list[Process]) -> list[Process]:
    """Leave out zombies: they hold nothing but a number."""
    return [process for process in found if process.state not in "ZX"]


def kill_until_empty(find: Find, reap: Callable[[], None] = lambda: None) -> tuple[int, list[Process]]:
    """KILL whatever `find` finds until it finds nothing twice; give how many were killed and who survived."""
    killed: set[tuple[int, int]] = set()
    empty = 0
    end = time.monotonic() + UNKILLABLE_AFTER_S
    while True:
        reap()
        found = living(find())
        if not found:
            empty += 1
            if empty == TWICE:
                return len(killed), []
            continue
        empty = 0
        for process in found:
            if processes.send_signal(process, _signal.SIGKILL):
                killed.add((process.pid, process.ticks))
        if time.monotonic() > end:
            return len(killed), found
        # KILL takes a moment to arrive; a fork-hopper is caught because its new children are read again at once.
        time.sleep(0.002)


def below(process_pid: int) -> Find:
    """Find everything below a process."""
    return lambda: processes.descendants(process_pid)


def of_run(run_id: str, node_rank: int | None, recorded: list[list[int]], spare: tuple[int, ...] = ()) -> Find:
    """Find what carries the run's marker, what stands in its last record, and everything below those."""

    def find() -> list[Process]:
        roots = processes.marked(run_id, node_rank)
        for pid, ticks in recorded:
            process = processes.read_process(pid)
            if process is not None and process.ticks == ticks:
                roots.append(process)
        found = {(process.pid, process.ticks): process for process in roots}
        for root in roots:
            for process in processes.descendants(root.pid):
                found[process.pid, process.ticks] = process
        return [process for process in found.values() if process.pid not in spare]

    return find


def end_supervisor(supervisor: Process) -> tuple[int, list[Process]]:
    """End a supervisor that hangs and all below it; give how many were killed and who survived."""
    # Its tree first: once it is gone, nothing tells whose they were.
    killed, survivors = kill_until_empty(below(supervisor.pid))
    processes.send_signal(supervisor, _signal.SIGKILL)
    return killed + 1, survivors


def sweep(
    run_id: str,
    node_rank: int | None,
    recorded: list[list[int]],
    grace_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """End what is left of a run that has no supervisor any more: TERM, grace, KILL, proof."""
    find = of_run(run_id, node_rank, recorded, spare=(os.getpid(), os.getppid()))
    found = living(find())
    if grace_s > 0:
        for process in found:
            processes.send_signal(process, _signal.SIGTERM)
        end = time.monotonic() + grace_s
        while living(find()) and time.monotonic() < end:
            meanwhile()
            time.sleep(0.05)
    killed, survivors = kill_until_empty(find)
    return {"stopped": len(found), "killed": killed, "survivors": describe(survivors)}


def proved(state: str, survivors: object, gpus: dict[str, Any]) -> str:
    """Give the state in which a run ends here: it was stopped only if nothing of it is left."""
    left = bool(survivors or gpus.get("gpus"))
    return "failed" if left and state != "succeeded" else state


def describe(survivors: list[Process]) -> list[dict[str, Any]]:
    """Name the processes that could not be ended."""
    return [
        {"pid": process.pid, "state": process.state, "command": processes.command_of(process.pid)}
        for process in survivors
    ]


def collect_orphans(but: int) -> None:
    """Take the status of our children that have ended, which came to us when their parents did; but one is waited for."""
    for pid in processes.children(os.getpid()):
        if pid != but:
            try:
                os.waitpid(pid, os.WNOHANG)
            except OSError:
                pass


def ask_to_end(handle: int) -> None:
    """TERM the process behind a pidfd, if it has not ended by itself."""
    try:
        processes.signal_handle(handle, _signal.SIGTERM)
    except OSError:
        pass
