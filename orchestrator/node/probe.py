"""Asks a node everything that the launch host needs to know before a start, in one round trip, reading only.

The answer is {"facts": {...}, "unknown": {group: reason}, "clock": T}, the last being the node's time. A better idea of
the clock the porter gives meanwhile, which is not busy.
"""

from __future__ import annotations

import _thread
import os
import time

from orchestrator.node import (
    probe_disk,
    probe_gpus,
    probe_health,
    probe_host,
    probe_interfaces,
    probe_leftovers,
    probe_network,
    probe_places,
    probe_project,
    probe_python,
    probe_rdma,
    probe_script,
    probe_session,
    probe_system,
    probe_work,
)
from orchestrator.node.atonce import start_thread
from orchestrator.node.wire import Wire

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Facts = Dict[str, Any]

STEP_S = 0.02
"""Whatever takes longer waits for something, and the others go on without it."""
# In this order: what asks others and takes longest comes first.
GROUPS: Tuple[Tuple[str, Callable[[Facts], Facts], float], ...] = (
    ("python", probe_python.probe_python, 20.0),
    ("health", probe_health.probe_health, 6.0),
    ("gpus", probe_gpus.probe_gpus, 6.0),
    ("system.load", probe_work.probe_work, 5.0),
    ("system.stuck", probe_work.probe_stuck, 5.0),
    ("system.troubles", probe_system.probe_kernel_log, 6.0),
    ("hostname", probe_network.probe_hostname, 3.0),
    ("rdma", probe_rdma.probe_rdma, 5.0),
    ("leftovers", probe_leftovers.probe_leftovers, 5.0),
    ("disk", probe_disk.probe_disk, 5.0),
    ("home", probe_disk.probe_home, 5.0),
    ("identity", probe_host.probe_identity, 5.0),
    ("machine", probe_host.probe_machine, 5.0),
    ("limits", probe_host.probe_limits, 5.0),
    ("rsync", probe_host.probe_rsync, 5.0),
    ("addresses", probe_network.probe_addresses, 5.0),
    ("routes", probe_network.probe_routes, 5.0),
    ("network", probe_interfaces.probe_interfaces, 5.0),
    ("session", probe_session.probe_session, 5.0),
    ("session.tmp", probe_session.probe_temporary_folder, 5.0),
    ("session.run-folder", probe_session.probe_run_folder, 5.0),
    ("session.commands", probe_session.probe_commands, 5.0),
    ("system", probe_system.probe_system, 6.0),
    ("system.mounts", probe_system.probe_mounts, 5.0),
    ("system.shm", probe_system.probe_shm, 5.0),
    ("project", probe_project.probe_project, 5.0),
    ("project.paths", probe_places.probe_paths, 5.0),
    ("project.disks", probe_places.probe_disks, 5.0),
    ("project.script", probe_script.probe_script, 10.0),
    ("project.code", probe_places.probe_code, 20.0),
)


class Group:
    """One group of facts, with a limit of its own."""

    def __init__(self, name: str, gather: Callable[[Facts], Facts], limit_s: float) -> None:
        self.name = name
        self.limit_s = limit_s
        self.facts: Facts = {}
        self.trouble = ""
        self.began: Optional[float] = None
        self._gather = gather
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def gather(self, request: Facts) -> None:
        """Gather the facts."""
        self.began = time.monotonic()
        try:
            self.facts = self._gather(request)
        except Exception as error:  # noqa: BLE001 - whatever is odd on this node costs one group, not the probe
            self.trouble = f"{type(error).__name__}: {error}"
        self._done.release()

    def wait(self, until: float) -> bool:
        """Wait until it is there, or until that moment; tell whether it is there or its limit has passed."""
        now = time.monotonic()
        end = now + self.limit_s if self.began is None else self.began + self.limit_s
        if self._done.acquire(timeout=max(0.0, min(until, end) - now)):
            return True
        if self.began is not None and time.monotonic() >= end:
            self.trouble = f"no answer within {self.limit_s:g} s"
            return True
        return False


class Crew:
    """Gathers groups one after the other; what hangs (a driver, a mount, a name server) holds up none of the others.

    A thread for each would cost more than most groups do: the next one is started when the last has been busy with one
    and the same group for a while.
    """

    def __init__(self, groups: List[Group], request: Facts) -> None:
        self._groups = groups
        self._waiting = list(groups)
        self._request = request
        # The first asks the run's interpreter, which always takes a while.
        for _ in range(2):
            start_thread(self._work)

    def _work(self) -> None:
        while self._waiting:
            try:
                group = self._waiting.pop(0)
            except IndexError:
                return  # another one was faster
            group.gather(self._request)

    def wait(self) -> None:
        """Wait until all are there or have passed their limits."""
        for group in self._groups:
            left = len(self._waiting)
            while not group.wait(time.monotonic() + STEP_S):
                if left and len(self._waiting) == left:
                    start_thread(self._work)
                left = len(self._waiting)


def lay_over(facts: Facts, more: Facts) -> None:
    """Add what a group found; several may add to one table."""
    for name, value in more.items():
        both = isinstance(value, dict) and isinstance(facts.get(name), dict)
        facts[name] = {**facts[name], **value} if both else value


def main(request: Dict[str, Any], wire: Wire, modules: Dict[str, str]) -> None:
    """Gather all groups at once, then answer."""
    del modules
    without = request.get("without", ())
    groups = [Group(name, gather, limit_s) for name, gather, limit_s in GROUPS if name not in without]
    crew = Crew(groups, request)
    facts: Facts = {}
    unknown: Dict[str, str] = {}
    crew.wait()
    for group in groups:
        if group.trouble:
            unknown[group.name] = group.trouble
        else:
            unknown.update(group.facts.pop("unknown", {}))
            lay_over(facts, group.facts)
    wire.send({"facts": facts, "unknown": unknown, "clock": time.time()})
    # A thread stuck in the kernel must not keep the interpreter from ending.
    os._exit(0)
