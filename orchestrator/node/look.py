"""The last look at ranks that are about to be stopped: what each of them did, before nobody can tell any more."""

from __future__ import annotations

import os
import time

from orchestrator.node import armed, clock, processes
from orchestrator.node.fastjson import dumps, loads
from orchestrator.node.probe_command import read_text

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List

    Facts = Dict[str, Any]

FILE = "last_look.json"
ASKED_FOR = frozenset({"interrupt", "terminate", "kill", "elsewhere"})
"""Stops that somebody wanted: there is nothing to explain."""
STACKS_S = 0.05
"""Of two signals that wait the lower number comes first, and TERM is lower: a stack is written before, or never."""
SETTLED_S = 0.01
POLL_S = 0.002


def take(ranks: Iterable[Facts], reason: str) -> Dict[int, int]:
    """Write down what the ranks of the run folder that is the current one do, in milliseconds.

    Gives who was asked for a stack, by rank, and where in its file that begins.
    """
    ranks = list(ranks)
    if reason in ASKED_FOR or not ranks:
        return {}
    looks = _read(".")
    moment = clock.now()
    # Before they are asked: a signal wakes who slept.
    seen = [look_at(rank) for rank in ranks]
    asked = armed.signal_armed(ranks, ".")
    told = [{**rank, "stack_at": asked.get(rank["rank"])} for rank in seen]
    looks.append({"time": moment, "reason": reason, "ranks": told})
    os.makedirs("diagnosis", mode=0o700, exist_ok=True)
    path = os.path.join("diagnosis", FILE)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(dumps(looks))
    os.replace(path + ".new", path)
    return asked


def wait_for_stacks(asked: Dict[int, int]) -> None:
    """Wait until the ranks that were asked have written their stacks, but not for long."""
    end = time.monotonic() + STACKS_S
    sizes: Dict[int, int] = {}
    changed = time.monotonic()
    while asked and time.monotonic() < end:
        now = {rank: _size(rank) for rank in asked}
        if now != sizes:
            sizes, changed = now, time.monotonic()
        elif all(now[rank] > asked[rank] for rank in asked) and time.monotonic() - changed >= SETTLED_S:
            return
        time.sleep(POLL_S)


def _size(rank: int) -> int:
    try:
        return os.stat(armed.rank_path(".", rank, "txt")).st_size
    except OSError:
        return 0


def look_at(rank: Facts) -> Facts:
    """Say what the kernel tells of one rank: its state and what its main thread waits for."""
    process = processes.read_process(rank["pid"])
    here = process is not None and process.ticks == rank["ticks"]
    return {
        "rank": rank["rank"],
        "local_rank": rank["local_rank"],
        "pid": rank["pid"],
        "state": process.state if process is not None and here else "",
        "wchan": read_text("/proc/%d/wchan" % rank["pid"]) if here else "",
    }


def read_looks(folder: str) -> List[Facts]:
    """Read the looks that were taken in a run folder, each rank with the stack that it wrote then."""
    looks = _read(folder)
    for taken in looks:
        for rank in taken["ranks"]:
            start = rank.pop("stack_at", None)
            rank["text"] = "" if start is None else armed.read_stack(folder, rank["rank"], start)
    return looks


def _read(folder: str) -> List[Facts]:
    try:
        with open(os.path.join(folder, "diagnosis", FILE), encoding="utf-8") as file:
            looks: List[Facts] = loads(file.read())
    except (OSError, ValueError):
        return []
    return looks
