"""The supervisor: our one process on a node. It owns the agent and everything below it, and says truly how they ended.

It runs as `python3 -I -S <run folder>/supervisor.py`, reads its order from stdin, writes "ready" to the inherited
pipe, and serves whoever connects to the socket in the run folder: it sends every event so far and every new one, and
takes the orders go and stop. It ends by itself once nothing of the run is left.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import os
import select
import time

from orchestrator.node import agent, clock, command, ending, exit_status, gpu_memory, look, processes, runfolder
from orchestrator.node.clients import Clients
from orchestrator.node.lease import Lease
from orchestrator.node.logfiles import LogFiles
from orchestrator.node.logspace import LogSpace
from orchestrator.node.ranks import RankWatch

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any

LINGER_S = 5.0
"""What the ranks left behind (uploaders) may go on for so long after a good end."""
TAIL_S = 2.0
"""What outlives its agent after a stop order gets at most this much of the grace."""
AGENT_GONE_S = 2.0
"""A zombie whose other threads are still being ended cannot be waited for yet."""
HEARTBEAT_S = 5.0
SIGNALS_KEPT = 10
RECORDED = ("run_id", "attempt", "node_rank", "workdir", "processes", "first_rank", "gpu_memory")
"""What stands in the status file of the order."""


class Supervisor:
    """The state of one run on one node."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.agent: agent.Agent | None = None
        self.agent_handle = -1
        self.ranks = RankWatch()
        self.events: list[dict[str, Any]] = []
        self.clients = Clients()
        self.space = LogSpace(
            LogFiles(".", order["run_id"], order["attempt"], {}), int(order.get("log_space_mib", 0)) << 20
        )
        self.state = "prepared"
        self.reason = ""
        self.end_state = "stopped"
        self.stopped = 0
        self.lease = Lease(float(order.get("lease_s", 0)), float(order.get("limit_s", 0)))
        self.deadline: float | None = None
        self.stop_time: float | None = None
        self.looked = False
        self.clearing = False  # the agent has failed: what ends from now on ends because of us
        self.tree: list[list[int]] = []
        self.next_scan = self.next_record = self.next_heartbeat = 0.0
        self.born = time.monotonic()
        self.done = False
        own = processes.read_process(os.getpid())
        self.identity = {"pid": os.getpid(), "ticks": own.ticks if own else 0, "boot_id": processes.boot_id()}

    # -- telling

    def tell(self, event: dict[str, Any]) -> None:
        """Keep an event and send it to everyone who listens."""
        event.setdefault("time", clock.now())
        if event["ev"] == "signalled":
            # Who signals every second must not make what we repeat to newcomers longer and longer.
            old = [told for told in self.events if told["ev"] == "signalled"][:-SIGNALS_KEPT]
            self.events = [told for told in self.events if told not in old]
        self.events.append(event)
        # Written before it is told: whoever hears the last word may look for it in the file at once.
        self.record()
        self.clients.send(event)

    def record(self) -> bool:
        """Write the status file; False when the disk does not take it."""
        self.next_heartbeat = time.monotonic() + HEARTBEAT_S
        return runfolder.write_status(
            ".",
            {
                **{name: self.order.get(name) for name in RECORDED},
                "state": self.state,
                "reason": self.reason,
                "supervisor": self.identity,
                "agent": self.agent.pid if self.agent else None,
                "tree": self.tree,
                "punched": self.space.punched,
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
        told = command.describe_agent(self.order, self.agent.pid)
        self.state = "running" if told else "starting"
        self.lease.start()
        self.tell({"ev": "agent", "pid": self.agent.pid, **told})

    def find_ranks(self) -> None:
        """Look for new ranks; once all of this node were seen, it runs."""
        assert self.agent is not None
        pid = self.agent.pid
        found = command.find_ranks(pid, self.order) if self.order.get("is_command") else processes.children(pid)
        for event in self.ranks.find(found):
            if self.state == "starting" and self.ranks.seen >= self.order["processes"]:
                self.state = "running"
            self.tell(event)
            self.next_record = 0.0

    def agent_ended(self) -> None:
        """Tell the agent's own end, and give what it left behind its last seconds."""
        assert self.agent is not None
        self.find_ranks()
        code = self.agent.wait()
        os.close(self.agent_handle)
        self.agent_handle = -1
        # Ranks that died together with the agent wake us in any order: take theirs first.
        self.take_ended_ranks()
        self.tell(
            {
                "ev": "agent_exit",
                **exit_status.describe_code(code),
                "after_stop": self.stop_time is not None,
            }
        )
        now = time.monotonic()
        if self.stop_time is None:
            # A killed agent leaves its ranks running: they are no uploaders, and nobody waits for them.
            self.deadline = now + (LINGER_S if code == 0 else TAIL_S)
            if code != 0:
                self.clearing = True
                look.wait_for_stacks(self.look("the agent ended"))
                self.signal_tree(_signal.SIGTERM)
        elif not self.order.get("is_command"):
            self.signal_tree(_signal.SIGTERM)
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
            ours = self.stop_time is not None or self.clearing
            failed = bool(event["code"] or event["signal"])
            full = {"disk_full": True} if failed and runfolder.is_full(".") else {}
            self.tell({**event, "after_stop": ours, **full})
            if failed and not ours:
                # Its agent would wait up to 30 s for ranks that do not listen, and the other nodes are not told at all.
                why = "rank %d failed" % event["rank"]
                self.lease.note_failure(why, connected=bool(self.clients.handles))
                # Its agent ends the others within 0.1 s. Not waited for: of another one that ends now, the status would be missed.
                self.look(why)

    # -- stopping

    def stop(self, grace_s: float, reason: str, end_state: str = "stopped") -> None:
        """TERM once to the agent (a third TERM would orphan the ranks), KILL to everything when the grace is over."""
        now = time.monotonic()
        if self.stop_time is not None:
            self.deadline = min(self.deadline if self.deadline is not None else now, now + grace_s)
            return
        self.stop_time = now
        self.deadline = now + grace_s
        self.reason = reason
        self.end_state = end_state
        self.state = "stopping"
        self.stopped = len(ending.living(processes.descendants(os.getpid())))
        look.wait_for_stacks(self.look(reason))
        self.tell({"ev": "stopping", "reason": reason, "grace_s": grace_s})
        if self.agent_handle >= 0 and grace_s > 0:
            if self.agent is not None and self.order.get("is_command"):
                command.tell_stop(self.agent.pid)
                return
            ending.ask_to_end(self.agent_handle)
        else:
            self.signal_tree(_signal.SIGTERM)

    def look(self, reason: str) -> dict[int, int]:
        """Take the last look at the ranks that still run, once: what they do later, they do because they were stopped."""
        asked: dict[int, int] = {}
        ranks = list(self.ranks.handles.values()) or command.list_stand_ins(self.events)
        if not self.looked and ranks:
            self.looked = True
            try:
                asked = look.take(ranks, reason)
            except Exception:  # noqa: BLE001, S110 - it reads what ranks can write: whatever that is, it must not end a supervisor
                pass
        return asked

    def signal_tree(self, number: int) -> None:
        """Signal everything below us once."""
        for process in ending.living(processes.descendants(os.getpid())):
            processes.send_signal(process, number)

    def reap(self) -> None:
        """Collect the orphans that came to us; the agent's own status is left to Agent.wait."""
        ending.collect_orphans(self.agent.pid if self.agent and self.agent_handle >= 0 else -1)

    def end_tree(self) -> None:
        """KILL what is left, tell the agent's end if that was us, prove that nothing is left."""
        killed, survivors = ending.kill_until_empty(ending.below(os.getpid()), self.reap)
        self.take_ended_ranks()
        # An agent that hangs in the kernel cannot be waited for; it is among the survivors.
        if self.agent is not None and self.agent_handle >= 0 and processes.wait_end(self.agent_handle, AGENT_GONE_S):
            self.agent_ended()
        more, others = ending.kill_until_empty(
            ending.of_run(self.order["run_id"], self.order["node_rank"], self.tree, (os.getpid(),)), self.reap
        )
        survivors = survivors + others
        if self.stop_time is not None:
            state = self.end_state
        else:
            end = next((event for event in self.events if event["ev"] == "agent_exit"), {})
            state = "succeeded" if end.get("code") == 0 else "failed"
        # What survivors hold is told by their names.
        gpus = {} if survivors else gpu_memory.left_over(self.order.get("gpu_memory"))
        state = ending.proved(state, survivors, gpus)
        self.finish(state, self.reason, killed + more, ending.describe(survivors), gpus)

    def finish(
        self,
        state: str,
        reason: str,
        killed: int = 0,
        survivors: list[dict[str, Any]] | None = None,
        gpus: dict[str, Any] | None = None,
    ) -> None:
        """Say the last word."""
        self.state, self.reason = state, reason
        word = {"ev": "final", "state": state, "reason": reason, "killed": killed, "survivors": survivors or []}
        self.tell({**word, "stopped": self.stopped, **(gpus or {})})
        self.done = True

    # -- the loop

    def obey(self, order: dict[str, Any]) -> None:
        """Do what a client asks."""
        what = order.get("op")
        if what == "beat":
            self.lease.renew()
        elif what == "go" and self.agent is None and self.state == "prepared":
            self.start_agent()
        elif what == "signal":
            signalled = self.ranks.signal(int(order["signal"]))
            if self.agent is not None and command.list_stand_ins(self.events):
                signalled = command.signal_stand_in(self.agent.pid, self.order, int(order["signal"]))
            self.tell({"ev": "signalled", "id": order.get("id"), "signal": order["signal"], "ranks": signalled})
        elif what == "stop":
            reason, end_state = str(order.get("reason", "")), str(order.get("state", "stopped"))
            if self.agent is None:
                self.finish(end_state, reason)
            else:
                self.stop(float(order.get("grace_s", 0)), reason, end_state)

    def end_without_controller(self) -> None:
        """Stop this node for a reason that a controller would stop the run for, while there is none."""
        if self.agent is None or self.stop_time is not None or self.clearing:
            return
        connected = bool(self.clients.handles)
        if self.lease.is_out_of_time(connected=connected):
            self.stop(self.order["grace_s"], "time limit", "timed out")
            return
        why = self.lease.why_stop(connected=connected)
        if why:
            failed = any(event["ev"] == "rank_exit" and (event["code"] or event["signal"]) for event in self.events)
            grace_s = self.order.get("failure_grace_s", 0.0) if failed else self.order["grace_s"]
            self.stop(grace_s, why, "failed" if failed else "stopped")

    def note_tree(self) -> None:
        """Record who stands below us, so that a later sweep finds them even if we are killed."""
        self.reap()
        tree = [[process.pid, process.ticks] for process in processes.descendants(os.getpid())]
        if tree != self.tree:
            self.tree = tree
            self.record()
