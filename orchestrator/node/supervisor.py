"""The supervisor: our one process on a node. It owns the agent and everything below it, and says truly how they ended.

It runs as `python3 -I -S <run folder>/supervisor.py`, reads its order from stdin, writes "ready" to the inherited
pipe, and serves whoever connects to the socket in the run folder: it sends every event so far and every new one, and
takes the orders go and stop. It ends by itself once nothing of the run is left.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from typing import Any

from orchestrator.node import agent, ending, processes, runfolder
from orchestrator.node.clients import Clients
from orchestrator.node.ranks import RankWatch

SCAN_S = 0.02
"""A rank that fails at once is reaped by its agent within 0.1 s: to see its status it must be found before."""
SCAN_LATER_S = 0.5
LINGER_S = 5.0
"""What the ranks left behind (uploaders) may go on for so long after a good end."""
TAIL_S = 2.0
"""What outlives its agent after a stop order gets at most this much of the grace."""
ORPHAN_S = 60.0
"""A supervisor that nobody tells to go ends itself."""


class Supervisor:
    """The state of one run on one node."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.agent: subprocess.Popen[bytes] | None = None
        self.agent_handle = -1
        self.ranks = RankWatch()
        self.events: list[dict[str, Any]] = []
        self.clients = Clients()
        self.state = "ready"
        self.reason = ""
        self.deadline: float | None = None
        self.stop_time: float | None = None
        self.clearing = False  # the agent has failed: what ends from now on ends because of us
        self.tree: list[list[int]] = []
        self.next_scan = self.next_record = 0.0
        self.born = time.monotonic()
        self.done = False
        own = processes.read_process(os.getpid())
        self.identity = {"pid": os.getpid(), "ticks": own.ticks if own else 0, "boot_id": processes.boot_id()}

    # -- telling

    def tell(self, event: dict[str, Any]) -> None:
        """Keep an event and send it to everyone who listens."""
        event.setdefault("time", time.time())
        self.events.append(event)
        self.clients.send(event)
        self.record()

    def record(self) -> None:
        """Write the status file."""
        runfolder.write_status(
            ".",
            {
                "run_id": self.order["run_id"],
                "attempt": self.order["attempt"],
                "node_rank": self.order["node_rank"],
                "state": self.state,
                "reason": self.reason,
                "supervisor": self.identity,
                "agent": self.agent.pid if self.agent else None,
                "tree": self.tree,
                "events": self.events,
            },
        )

    # -- the agent

    def start_agent(self) -> None:
        """Start the agent, or end at once with the reason."""
        try:
            self.agent = agent.start(self.order)
        except (OSError, ValueError) as error:
            why = agent.describe_error(error, self.order)
            self.tell({"ev": "agent_exit", "code": 127, "signal": None, "error": why})
            self.finish("failed", f"the agent did not start: {why}")
            return
        self.agent_handle = processes.open_handle(self.agent.pid)
        self.state = "running"
        self.tell({"ev": "agent", "pid": self.agent.pid})

    def agent_ended(self) -> None:
        """Tell the agent's own end, and give what it left behind its last seconds."""
        assert self.agent is not None
        for event in self.ranks.find(self.agent.pid):
            self.tell(event)
        code = self.agent.wait()
        os.close(self.agent_handle)
        self.agent_handle = -1
        # Ranks that died together with the agent wake us in any order: take theirs first.
        self.take_ended_ranks()
        self.tell(
            {
                "ev": "agent_exit",
                "code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "after_stop": self.stop_time is not None,
            }
        )
        now = time.monotonic()
        if self.stop_time is None:
            # A killed agent leaves its ranks running: they are no uploaders, and nobody waits for them.
            self.deadline = now + (LINGER_S if code == 0 else TAIL_S)
            if code != 0:
                self.clearing = True
                self.signal_tree(signal.SIGTERM)
        else:
            self.signal_tree(signal.SIGTERM)
            self.deadline = min(self.deadline or now, now + TAIL_S)

    def take_ended_ranks(self) -> None:
        """Tell the end of every rank whose handle says so."""
        if not self.ranks.handles:
            return
        poll = select.poll()
        for handle in self.ranks.handles:
            poll.register(handle, select.POLLIN)
        for handle, _ in poll.poll(0):
            event = self.ranks.ended(handle)
            self.tell({**event, "after_stop": self.stop_time is not None or self.clearing})

    # -- stopping

    def stop(self, grace_s: float, reason: str) -> None:
        """TERM once to the agent (a third TERM would orphan the ranks), KILL to everything when the grace is over."""
        now = time.monotonic()
        if self.stop_time is not None:
            self.deadline = min(self.deadline if self.deadline is not None else now, now + grace_s)
            return
        self.stop_time = now
        self.deadline = now + grace_s
        self.reason = reason
        self.state = "stopping"
        self.tell({"ev": "stopping", "reason": reason, "grace_s": grace_s})
        if self.agent_handle >= 0 and grace_s > 0:
            with contextlib.suppress(OSError):
                processes.signal_handle(self.agent_handle, signal.SIGTERM)
        else:
            self.signal_tree(signal.SIGTERM)

    def signal_tree(self, number: int) -> None:
        """Signal everything below us once."""
        for process in ending.living(processes.descendants(os.getpid())):
            processes.send_signal(process, number)

    def reap(self) -> None:
        """Collect the orphans that came to us; the agent's own status is left to its Popen."""
        agent_pid = self.agent.pid if self.agent and self.agent_handle >= 0 else -1
        for pid in processes.children(os.getpid()):
            if pid != agent_pid:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)

    def end_tree(self) -> None:
        """KILL what is left, tell the agent's end if that was us, prove that nothing is left."""
        killed, survivors = ending.kill_until_empty(ending.below(os.getpid()), self.reap)
        self.take_ended_ranks()
        # An agent that hangs in the kernel cannot be waited for; it is among the survivors.
        if self.agent is not None and self.agent_handle >= 0 and self.agent.poll() is not None:
            self.agent_ended()
        more, others = ending.kill_until_empty(
            ending.of_run(self.order["run_id"], self.order["node_rank"], self.tree, (os.getpid(),)), self.reap
        )
        survivors = survivors + others
        if self.stop_time is not None:
            state = "stopped"
        else:
            end = next((event for event in self.events if event["ev"] == "agent_exit"), {})
            state = "succeeded" if end.get("code") == 0 else "failed"
        self.finish(state, self.reason, killed + more, ending.describe(survivors))

    def finish(self, state: str, reason: str, killed: int = 0, survivors: list[dict[str, Any]] | None = None) -> None:
        """Say the last word."""
        self.state, self.reason = state, reason
        self.tell({"ev": "final", "state": state, "reason": reason, "killed": killed, "survivors": survivors or []})
        self.done = True

    # -- the loop

    def obey(self, order: dict[str, Any]) -> None:
        """Do what a client asks."""
        what = order.get("op")
        if what == "go" and self.agent is None and self.state == "ready":
            self.start_agent()
        elif what == "stop":
            if self.agent is None:
                self.finish("stopped", str(order.get("reason", "")))
            else:
                self.stop(float(order.get("grace_s", 0)), str(order.get("reason", "")))

    def timers(self) -> float:
        """Do what is due; give the seconds until something is due again."""
        now = time.monotonic()
        if self.agent is None and now - self.born > ORPHAN_S and not self.clients.handles:
            self.finish("stopped", "nobody said go")
        if self.agent is not None and self.agent_handle >= 0 and now >= self.next_scan:
            for event in self.ranks.find(self.agent.pid):
                self.tell(event)
            wanted = self.ranks.seen < self.order["processes"]
            self.next_scan = now + (SCAN_S if wanted else SCAN_LATER_S)
        if self.agent is not None and now >= self.next_record:
            self.note_tree()
            self.next_record = now + 1.0
        if self.agent is not None and self.agent_handle < 0 and not self.done:
            self.reap()
            left = ending.living(processes.descendants(os.getpid()))
            if not left or (self.deadline is not None and now >= self.deadline):
                self.end_tree()
                return 0.0
            return 0.05
        if self.deadline is not None and now >= self.deadline and not self.done:
            self.end_tree()
            return 0.0
        due = [self.next_scan, self.next_record] + ([self.deadline] if self.deadline is not None else [])
        return max(0.0, min(due) - now) if self.agent is not None else 1.0

    def note_tree(self) -> None:
        """Record who stands below us, so that a later sweep finds them even if we are killed."""
        self.reap()
        tree = [[process.pid, process.ticks] for process in processes.descendants(os.getpid())]
        if tree != self.tree:
            self.tree = tree
            self.record()

    def run(self, listener: socket.socket, wake: int) -> None:
        """Serve until nothing of the run is left."""
        while True:
            wait_s = self.timers()
            if self.done:
                return
            poll = select.poll()
            watched = [listener.fileno(), wake, *self.clients.handles, *self.ranks.handles]
            if self.agent_handle >= 0:
                watched.append(self.agent_handle)
            for handle in watched:
                poll.register(handle, select.POLLIN)
            # Ranks before their agent: what they say of themselves is the finer word.
            ready = {handle for handle, _ in poll.poll(wait_s * 1000)}
            self.take_ended_ranks()
            if wake in ready:
                os.read(wake, 4096)
                self.stop(self.order["grace_s"], "the supervisor was told to end by a signal")
            if self.agent_handle in ready:
                self.agent_ended()
            if listener.fileno() in ready:
                self.clients.accept(listener, self.events)
            for order in self.clients.read(ready):
                self.obey(order)
