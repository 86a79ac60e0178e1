"""An agent that is any command: it may be a rank itself, start some, or start what nobody can tell for ranks."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import os

from orchestrator.node import armed, processes

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List

    Facts = Dict[str, Any]

FOLDER = "command"
LOOK_S = 0.02
LOOKS_S = 60.0
"""So long after the start ranks are looked for often: one that fails at once is soon reaped by who started it."""


def make_place(order: Facts) -> str:
    """Make the folder in the run folder that is the current one, in which torchrun would have its first rank's output.

    Nobody can tell apart what the ranks of one command write: all of it stands under the node's first rank.
    """
    top = "%s.a%s_%s" % (order["run_id"], order["attempt"], FOLDER)
    place = os.path.join("ranks", top, "attempt_0", "0")
    os.makedirs(place, mode=0o700, exist_ok=True)
    return place


def describe_agent(order: Facts, pid: int) -> Facts:
    """Tell of an agent that has started; of a command also which rank it stands for, until real ones are seen."""
    process = processes.read_process(pid) if order.get("is_command") else None
    return {} if process is None else {"stands_for": order["first_rank"], "ticks": process.ticks}


def find_ranks(agent_pid: int, order: Facts) -> Iterator[int]:
    """Find the topmost processes that carry a rank of this node: what is below one belongs to it."""
    waiting: List[int] = [agent_pid]
    while waiting:
        pid = waiting.pop()
        if is_rank(processes.environ_of(pid), order):
            yield pid
        else:
            waiting += processes.children(pid)


def is_rank(environ: Dict[bytes, bytes], order: Facts) -> bool:
    """Tell whether a process is one of the ranks that were planned for this node, by its environment."""
    words = [environ.get(name, b"") for name in (b"RANK", b"LOCAL_RANK", b"WORLD_SIZE")]
    if not all(word.isdigit() for word in words):
        return False
    rank, _, world = map(int, words)
    first = int(order["first_rank"])
    return world == int(order["world_size"]) and first <= rank < first + int(order["processes"])


def find_target(agent_pid: int, order: Facts) -> int:
    """Find the process that takes signals for a command without ranks: itself, or what accelerate started for it."""
    below = processes.children(agent_pid) if order.get("agent") == "accelerate" else []
    return below[0] if below else agent_pid


def list_stand_ins(events: List[Facts]) -> List[Facts]:
    """Give what stands for the ranks of a command that has shown none, in the form of such a rank."""
    if any(event["ev"] == "rank" for event in events):
        return []
    agents = [event for event in events if event["ev"] == "agent" and "stands_for" in event]
    return [{**event, "rank": event["stands_for"], "local_rank": 0} for event in agents[-1:]]


def signal_stand_in(agent_pid: int, order: Facts, number: int) -> List[int]:
    """Signal a command that has shown no rank; give the rank that it stands for, if it was there to take it."""
    top = find_target(agent_pid, order)
    taken = [send(pid, number) for pid in find_takers(top, number) or [top]]
    return [order["first_rank"]] if any(taken) else []


def find_takers(top: int, number: int) -> List[int]:
    """Find the topmost processes that catch a signal: a shell in front of them would only die of it."""
    waiting, found = [top], []
    while waiting:
        pid = waiting.pop()
        if armed.catches(pid, number):
            found.append(pid)
        else:
            waiting += processes.children(pid)
    return found


def send(pid: int, number: int) -> bool:
    """Signal a process, if it is there to take it."""
    process = processes.read_process(pid)
    return process is not None and process.state not in "ZX" and processes.send_signal(process, number)


def tell_stop(agent_pid: int) -> None:
    """Ask a command to end, once: a shell dies of it and tells nobody; who takes the signal answers for all below it."""
    waiting = [agent_pid]
    while waiting:
        pid = waiting.pop()
        below = [] if armed.catches(pid, _signal.SIGTERM) else processes.children(pid)
        process = processes.read_process(pid)
        if process is not None:
            processes.send_signal(process, _signal.SIGTERM)
        waiting += below
