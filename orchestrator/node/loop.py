"""The loop of a supervisor: what is due by time, and what wakes it."""

from __future__ import annotations

import os
import select
import time

from orchestrator.node import command, ending, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    from orchestrator.node.supervisor import Supervisor

SCAN_S = 0.02
"""A rank that fails at once is reaped by its agent within 0.1 s: to see its status it must be found before."""
SCAN_LATER_S = 0.5
ORPHAN_S = 60.0
"""A supervisor that nobody tells to go ends itself."""


def run(supervisor: Supervisor, listener: _socket.socket, wake: int) -> None:
    """Serve until nothing of the run is left."""
    while True:
        wait_s = do_due(supervisor)
        if supervisor.done:
            return
        poll = select.poll()
        watched = [listener.fileno(), wake, *supervisor.clients.handles, *supervisor.ranks.handles]
        if supervisor.agent_handle >= 0:
            watched.append(supervisor.agent_handle)
        for handle in watched:
            poll.register(handle, select.POLLIN)
        # Ranks before their agent: what they say of themselves is the finer word.
        ready = {handle for handle, _ in poll.poll(wait_s * 1000)}
        supervisor.take_ended_ranks()
        if wake in ready:
            os.read(wake, 4096)
            supervisor.stop(supervisor.order["grace_s"], "the supervisor was told to end by a signal")
        if supervisor.agent_handle in ready:
            supervisor.agent_ended()
        if listener.fileno() in ready:
            supervisor.clients.accept(listener, supervisor.events)
        for order in supervisor.clients.read(ready):
            # An order of a launch host that speaks otherwise must not end the run.
            try:
                supervisor.obey(order)
            except (ValueError, TypeError, LookupError):
                pass


def find_pause(supervisor: Supervisor, now: float) -> float:
    """Say when to look for ranks again."""
    if supervisor.ranks.seen >= supervisor.order["processes"]:
        return SCAN_LATER_S
    if supervisor.order.get("is_command"):
        # It may have none that anybody could see.
        return command.LOOK_S if now - supervisor.born < command.LOOKS_S else SCAN_LATER_S
    return SCAN_S


def do_due(supervisor: Supervisor) -> float:
    """Do what is due; give the seconds until something is due again."""
    now = time.monotonic()
    if supervisor.agent is None and now - supervisor.born > ORPHAN_S and not supervisor.clients.handles:
        supervisor.finish("stopped", "nobody said go")
    if supervisor.agent is not None and supervisor.agent_handle >= 0 and now >= supervisor.next_scan:
        if supervisor.order.get("is_command") or supervisor.ranks.may_be_there(now):
            supervisor.find_ranks()
        supervisor.next_scan = now + find_pause(supervisor, now)
    if supervisor.agent is not None and now >= supervisor.next_record:
        supervisor.note_tree()
        supervisor.next_record = now + 1.0
    if why := supervisor.space.tend(now, supervisor.record):
        supervisor.tell({"ev": "log_space", "why": why})
    supervisor.end_without_controller()
    if now >= supervisor.next_heartbeat:
        supervisor.record()
    if supervisor.agent is not None and supervisor.agent_handle < 0 and not supervisor.done:
        supervisor.reap()
        left = ending.living(processes.descendants(os.getpid()))
        if not left or (supervisor.deadline is not None and now >= supervisor.deadline):
            supervisor.end_tree()
            return 0.0
        return 0.05
    if supervisor.deadline is not None and now >= supervisor.deadline and not supervisor.done:
        supervisor.end_tree()
        return 0.0
    due = [supervisor.next_scan, supervisor.next_record, supervisor.space.next_look] + (
        [supervisor.deadline] if supervisor.deadline is not None else []
    )
    return max(0.0, min(due) - now) if supervisor.agent is not None else 1.0
