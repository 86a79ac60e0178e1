"""The one place that decides what to do about what happened; it has no clock and does nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from orchestrator.diagnosis.events import Event, Order
from orchestrator.diagnosis.history import REBOOTED, STOP_CAUSES, VANISHED, History, StopCause
from orchestrator.values import STOPPED, NodePlan, Plan

"""States of a node that somebody ended."""
NEVER_STARTED = ("the launch host left before the start", "nobody said go")
"""What a supervisor says that ended itself before its agent."""
KILLED_EARLY = "its controller was killed before every node was told to start"
JOIN_EXTRA_S = 30.0
"""Beyond torchrun's own join time-out, so that its own words come first."""


class Decider:
    """Turns events into orders: a failure stops everyone, everyone's last word ends the run."""

    def __init__(self, plan: Plan, *, started: float, join_limit_s: float, begun: float | None = None) -> None:
        """Decide on a plan that was told to start, and that we follow since `begun`, where that is later."""
        self.plan = plan
        self.history = History(plan=plan, started=started)
        # Whoever takes a run over has to hear of its ranks first.
        self._join_by = (begun or started) + join_limit_s + JOIN_EXTRA_S
        self._said_running = False
        self._said_full = False
        self._said_cut = False
        self._told_gaps: set[tuple[int, str]] = set()

    @property
    def over(self) -> bool:
        """Nothing of the run is left that could say anything."""
        return self.history.over

    def take(self, event: Event) -> list[Order]:
        """Fold one event in and say what to do about it."""
        fresh = self.history.take(event)
        if not fresh:
            return []
        judge = {
            "agent": self._agent,
            "rank": self._rank,
            "rank_exit": self._rank_exit,
            "agent_exit": self._agent_exit,
            "final": self._final,
            "supervisor_lost": self._supervisor_lost,
            "rebooted": self._lost,
            "vanished": self._lost,
            "lost": self._lost,
            "suspect": self._suspect,
            "back": self._back,
            "store_error": self._store_error,
            "store_back": self._store_back,
            "gap": self._gap,
            "log_space": self._log_space,
            "interrupt": self._user_stop,
            "terminate": self._user_stop,
            "kill": self._kill,
            "time_limit": self._time_limit,
            "hang": self._hang,
            "hang_over": lambda event: [Order(say=str(event.data.get("words", "")))],
            "tick": self._tick,
        }.get(event.kind)
        return judge(event) if judge is not None else []

    # -- helpers

    def _node(self, event: Event) -> NodePlan:
        return self.plan.nodes[event.node_rank]

    def _all(self) -> tuple[int, ...]:
        done: Mapping[int, object] = self.history.finals
        return tuple(node.node_rank for node in self.plan.nodes if node.node_rank not in done)

    def _stop(self, cause: StopCause, event: Event, *, grace_s: float, say: str, detail: str = "") -> list[Order]:
        history = self.history
        if history.stop_cause is not None:
            return []
        history.note_stop(cause, event.time, event.node_rank, detail)
        return [Order(stop=self._all(), grace_s=grace_s, say=say)]

    def _fail(self, event: Event, say: str, detail: str = "") -> list[Order]:
        others = "; stopping the other nodes" if len(self.plan.nodes) > 1 else ""
        return self._stop("failure", event, grace_s=self.plan.failure_grace_s, say=say + others, detail=detail)

    # -- what nodes say

    def _rank(self, event: Event) -> list[Order]:
        world = int(event.data["world_size"])
        if world != self.plan.world_size:
            text = f"rank {event.data['rank']} was given world size {world}, the plan says {self.plan.world_size}"
            return self._fail(event, f"{self._node(event).node.name}: {text}", text)
        return self._say_running()

    def _agent(self, event: Event) -> list[Order]:
        return self._say_running() if event.node_rank in self.history.commands else []

    def _say_running(self) -> list[Order]:
        history = self.history
        if not history.all_seen or self._said_running or history.stop_cause is not None:
            return []
        self._said_running = True
        ranks = _count(self.plan.world_size, "rank")
        # Whether they have started the ranks, nobody can see.
        what = f"{_count(len(history.commands), 'command')} for {ranks}" if history.commands else ranks
        return [Order(say=f"running: {what} on {_count(len(self.plan.nodes), 'node')}")]

    def _rank_exit(self, event: Event) -> list[Order]:
        exit_ = self.history.exits[int(event.data["rank"])]
        if exit_.after_stop or exit_.clean or (exit_.code is None and exit_.signal is None):
            return []  # unknown: its agent's word will tell
        how = f"signal {exit_.signal}" if exit_.signal is not None else f"exit code {exit_.code}"
        return self._fail(event, f"rank {exit_.rank} on {self._node(event).node.name} ended with {how}")

    def _agent_exit(self, event: Event) -> list[Order]:
        exit_ = self.history.agent_exits[event.node_rank]
        if exit_.clean or exit_.after_stop:
            return []
        how = f"signal {exit_.signal}" if exit_.signal is not None else f"exit code {exit_.code}"
        who = "command" if self.plan.agents_are_commands else "agent"
        return self._fail(event, f"the {who} on {self._node(event).node.name} ended with {how}", exit_.error)

    def _final(self, event: Event) -> list[Order]:
        state, reason = str(event.data.get("state")), str(event.data.get("reason", ""))
        left = event.data.get("survivors") or event.data.get("gpus")
        ended_by_order = state in STOPPED or bool(left and event.node_rank in self.history.stopping)
        if not ended_by_order or self.history.stop_cause is not None:
            return []
        name = self._node(event).node.name
        if reason in STOP_CAUSES and reason != "kill":
            # A controller before us ordered it, and had no time to write that down.
            asked = reason in ("interrupt", "terminate", "elsewhere", "time limit")
            return self._stop(
                cast("StopCause", reason),
                event,
                grace_s=self.plan.grace_s if asked else self.plan.failure_grace_s,
                say=f"{name} had been stopped ({reason}); stopping the other nodes",
                detail=reason,
            )
        if reason in NEVER_STARTED:
            say = f"{KILLED_EARLY}; stopping"
            return self._stop("not joined", event, grace_s=self.plan.failure_grace_s, say=say, detail=KILLED_EARLY)
        reason = reason or "somebody else"
        return self._stop(
            "elsewhere",
            event,
            grace_s=self.plan.grace_s,
            say=f"{name} was stopped from elsewhere ({reason}); stopping the other nodes",
            detail=reason,
        )

    def _supervisor_lost(self, event: Event) -> list[Order]:
        self.history.supervisors_lost.add(event.node_rank)
        name = self._node(event).node.name
        if self.history.stop_cause is not None:
            # The stop order went to a supervisor that is no more: the pump ends what it left.
            return [Order(stop=(event.node_rank,), grace_s=self.plan.failure_grace_s)]
        return self._fail(event, f"the supervisor on {name} was killed", "the supervisor was killed")

    def _lost(self, event: Event) -> list[Order]:
        why = {"rebooted": REBOOTED, "vanished": VANISHED}.get(event.kind) or str(event.data.get("why", "no answer"))
        if event.node_rank in self.history.finals:
            node = self._node(event)
            return [
                Order(
                    say=f"warning: {node.node.name} is away since its last word ({why}): its logs here may end early;"
                    f" the rest lies in {node.run_folder} on it"
                )
            ]
        self.history.lost[event.node_rank] = why
        name = self._node(event).node.name
        return self._stop(
            "lost",
            event,
            grace_s=self.plan.failure_grace_s,
            say=f"{name} is lost ({why}); stopping the other nodes",
            detail=why,
        ) or [Order(say=f"{name} is lost ({why})")]

    def _suspect(self, event: Event) -> list[Order]:
        history = self.history
        history.suspect.add(event.node_rank)
        say = f"{self._node(event).node.name}: the link is silent ({event.data.get('why', '')}); trying again"
        left = set(self._all()) - set(history.lost)
        if len(left) > 1 and left <= history.suspect and not history.finals and not self._said_cut:
            self._said_cut = True
            say += "\nno node is reached from here: the run goes on without us, and we go on once they answer"
        return [Order(say=say)]

    def _back(self, event: Event) -> list[Order]:
        self.history.suspect.discard(event.node_rank)
        self._said_cut = False
        return [Order(say=f"{self._node(event).node.name}: the link is back, nothing was missed")]

    def _store_error(self, event: Event) -> list[Order]:
        # One disk here takes the logs of all nodes.
        if self._said_full:
            return []
        self._said_full = True
        return [Order(say=f"logs cannot be written here: {event.data.get('why')}; they remain on the nodes")]

    def _store_back(self, event: Event) -> list[Order]:
        return [
            Order(say=f"logs can be written here again; fetching what was missed from {self._node(event).node.name}")
        ]

    def _gap(self, event: Event) -> list[Order]:
        key = (event.node_rank, str(event.data["file"]))
        if key in self._told_gaps:
            return []
        self._told_gaps.add(key)
        mib = (event.data["to"] - event.data["from"]) / (1 << 20)
        rank = event.data["rank"]
        who = "the agent" if rank is None else f"rank {rank}"
        where = f"{who} on {self._node(event).node.name}"
        return [Order(say=f"warning: {mib:.1f} MiB of the output of {where} were dropped there: launch.log_space_mib")]

    def _log_space(self, event: Event) -> list[Order]:
        return [Order(say=f"warning: {self._node(event).node.name}: {event.data['why']}; its logs have no bound")]

    # -- what happens here

    def _user_stop(self, event: Event) -> list[Order]:
        cause: StopCause = "interrupt" if event.kind == "interrupt" else "terminate"
        if self.history.stop_cause is None:
            say = f"stopping every node, {self.plan.grace_s:g} s grace; once more to kill at once"
            return self._stop(cause, event, grace_s=self.plan.grace_s, say=say)
        return [Order(stop=self._all(), grace_s=0.0, say="killing at once")]

    def _kill(self, event: Event) -> list[Order]:
        grace_s = float(event.data.get("grace_s", self.plan.grace_s))
        say = f"stopped by aorta-launch kill, {grace_s:g} s grace"
        # A second kill may only shorten the grace: a supervisor takes the earlier end of the two.
        return self._stop("kill", event, grace_s=grace_s, say=say) or [Order(stop=self._all(), grace_s=grace_s)]

    def _time_limit(self, event: Event) -> list[Order]:
        return self._stop(
            "time limit",
            event,
            grace_s=self.plan.grace_s,
            say=f"time limit reached; stopping, {self.plan.grace_s:g} s grace",
        )

    def _hang(self, event: Event) -> list[Order]:
        words = str(event.data.get("words", ""))
        if event.data.get("action") != "stop":
            return [Order(say=words)]
        cause = str(event.data.get("cause", "the run hangs"))
        say = f"{words}\nstopping every node, because of the hang".lstrip("\n")
        return self._stop("hang", event, grace_s=self.plan.failure_grace_s, say=say, detail=cause)

    def _tick(self, event: Event) -> list[Order]:
        history = self.history
        if history.all_seen or event.time < self._join_by or self._said_running or history.agent_exits:
            return []
        names = ", ".join(history.missing_nodes())
        text = f"ranks did not appear on {names} within {self._join_by - history.started:g} s"
        return self._stop("not joined", event, grace_s=self.plan.failure_grace_s, say=f"{text}; stopping", detail=text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
