"""Runs a program of orchestrator/exercise on all nodes, and asks its processes one thing after the other."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from types import TracebackType
from typing import Any, Self

from orchestrator.errors import LinkLostError
from orchestrator.facts import Facts
from orchestrator.light_dataclass import dataclass
from orchestrator.phases.addresses import Place
from orchestrator.plan.environment import CLEARED, build_env
from orchestrator.plan.ranks import count_processes
from orchestrator.settings import Settings
from orchestrator.transport import Channel, Link
from orchestrator.transport.fanout import fan_out
from orchestrator.values import EnvValue, Node

IDLE_S = 90.0
"""A node ends by itself when the launch host has been silent for so long."""
LIMIT_S = 1800.0
LISTEN_S = 0.3
RESTART_S = 20.0
"""A kill of the old processes and a start of new ones; a node that takes longer hangs."""
Order = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one process answered; without an answer, why there is none."""

    node_rank: int
    local_rank: int
    answer: Mapping[str, Any] | None = None
    trouble: str = ""


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Who takes part: the nodes with their processes and environment."""

    links: Sequence[Link]
    nodes: Sequence[Node]
    facts: Sequence[Facts]
    places: Sequence[Place]
    settings: Settings
    env: tuple[EnvValue, ...] = ()
    alone: bool = False
    """One process a node, whatever a launch would start there."""

    @property
    def device(self) -> str:
        """What the processes work on: a GPU each where every node has some and the run wants them, else processors."""
        wanted = self.settings.nproc_per_node != "cpu"
        able = all(fact.gpus and (fact.torch_cuda or fact.torch_hip) for fact in self.facts)
        return "cuda" if wanted and able else "cpu"

    def processes(self, node_rank: int) -> int:
        """Count the processes of a node: one a GPU, as a launch would; without GPUs one is enough, unless said."""
        if self.alone:
            return 1
        node, facts = self.nodes[node_rank], self.facts[node_rank]
        if not facts.gpus and node.slots is None and not self.settings.nproc_per_node.isdecimal():
            return 1
        return count_processes(node, facts, self.settings.nproc_per_node, self.env)


def read_program(name: str) -> str:
    """Read the text of a program that is sent, never imported here."""
    return resources.files("orchestrator.exercise").joinpath(f"{name}.py").read_text("utf-8")


class Deadline:
    """When no more answers are waited for; trouble brings it nearer, for all nodes alike."""

    def __init__(self, limit_s: float, after_trouble_s: float | None) -> None:
        self._end = time.monotonic() + limit_s
        self._after_trouble_s = after_trouble_s

    def left_s(self) -> float:
        """Say how much time is left."""
        return max(0.0, self._end - time.monotonic())

    def shorten(self) -> None:
        """Take notice of trouble, the first time."""
        if self._after_trouble_s is not None:
            self._end = min(self._end, time.monotonic() + self._after_trouble_s)
            self._after_trouble_s = None


def cannot(said: Said) -> bool:
    """Tell whether the answer is that it does not work."""
    return said.answer is not None and "error" in said.answer


class Exercise:
    """One program, running on all nodes until the end of a with block."""

    def __init__(self, crew: Crew, program: str, words: Mapping[str, Any]) -> None:
        self.crew = crew
        self._source = read_program(program)
        self._request = {"source": self._source, "name": f"{program}.py", "words": dict(words)}
        self._channels: list[Channel] = []
        self._live: list[set[int]] = []
        self._last: dict[tuple[int, int], str] = {}
        self._lives: list[int] = []
        self._stuck: set[tuple[int, int]] = set()
        self._gone: set[int] = set()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        """Start the processes on all nodes at once."""
        ranks = range(len(self.crew.nodes))
        opened: dict[int, Channel] = {}

        def start(node_rank: int) -> None:
            opened[node_rank] = self.crew.links[node_rank].open("exercise", self._order_for(node_rank))

        try:
            fan_out(start, ranks, self.crew.settings.fanout)
        except BaseException:
            for channel in opened.values():
                channel.close()
            raise
        self._channels = [opened[node_rank] for node_rank in ranks]
        self._live = [set(range(self.crew.processes(node_rank))) for node_rank in ranks]
        self._lives = [0 for _ in ranks]
        return self

    def _order_for(self, node_rank: int) -> dict[str, Any]:
        crew = self.crew
        processes = crew.processes(node_rank)
        values = build_env(
            node=crew.nodes[node_rank],
            facts=crew.facts[node_rank],
            processes=processes,
            interface=crew.places[node_rank].interface,
            given=crew.env,
            run={},
            placeholders={},
        )
        return {
            **self._request,
            "python": crew.facts[node_rank].python,
            "processes": processes,
            "env": {value.name: value.value for value in values},
            "cleared": list(CLEARED),
            "limit_s": LIMIT_S,
            "idle_s": IDLE_S,
        }

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes; each node kills what is left of them."""
        for channel in self._channels:
            channel.close()

    def restart(self, node_ranks: Sequence[int]) -> None:
        """Replace the processes of some nodes by new ones; a node that is gone, or whose engine hangs, stays gone."""
        wanted = [node_rank for node_rank in node_ranks if node_rank not in self._gone]
        again = fan_out(self._restart_node, wanted, max(1, len(wanted)))
        for node_rank, works in zip(wanted, again, strict=True):
            if works:
                self._live[node_rank] = set(range(self.crew.processes(node_rank)))
                self._stuck = {one for one in self._stuck if one[0] != node_rank}
                continue
            self._gone.add(node_rank)
            self._live[node_rank] = set()
            told = "the program that runs it on the node does not answer"
            self._last |= {(node_rank, rank): told for rank in range(self.crew.processes(node_rank))}

    def _restart_node(self, node_rank: int) -> bool:
        """Give the order and wait for the word that it is done; what comes before it is of the old processes."""
        try:
            self._channels[node_rank].send({"engine": "restart"})
            self._lives[node_rank] += 1
            end = time.monotonic() + RESTART_S
            while time.monotonic() < end:
                frame = self._channels[node_rank].read(max(0.01, end - time.monotonic()))
                if frame is None or "error" in frame.header:
                    return False
                if frame.header.get("life") == self._lives[node_rank] and "engine" in frame.header:
                    return True
        except (LinkLostError, TimeoutError):
            return False
        return False

    def stuck(self) -> list[int]:
        """List the nodes with a process that has ended, or has not answered the last question it got."""
        return sorted({node_rank for node_rank, _ in self._stuck})

    def ask(self, orders: Mapping[int, Order], timeout_s: float, after_trouble_s: float | None = None) -> list[Said]:
        """Give each node its order, and wait until every process of theirs has answered, has ended or the time is over.

        Where all do something together, one that ends or cannot spoils it for all: then the others are waited for
        only so much longer.
        """
        number = next(self._numbers)
        deadline = Deadline(timeout_s, after_trouble_s)
        work = list(orders.items())
        answers = fan_out(lambda item: self._ask_node(item[0], item[1], number, deadline), work, len(work))
        asked = [said for node in answers for said in node]
        self._stuck |= {(said.node_rank, said.local_rank) for said in asked if said.answer is None}
        return asked

    def _ask_node(self, node_rank: int, order: Order, number: int, deadline: Deadline) -> list[Said]:
        processes = range(self.crew.processes(node_rank))
        local = order.get("only")
        wanted = {rank for rank in processes if local is None or rank == local}
        found: dict[int, Said] = {}
        try:
            self._channels[node_rank].send({**order, "number": number, "patience_s": deadline.left_s()})
            # One that has ended is not waited for; what the others have to say is.
            while (wanted - set(found)) & self._live[node_rank] and deadline.left_s():
                with contextlib.suppress(TimeoutError):
                    self._hear(node_rank, number, min(LISTEN_S, deadline.left_s()), found)
                if not wanted - set(found) <= self._live[node_rank] or any(map(cannot, found.values())):
                    deadline.shorten()
        except LinkLostError as error:
            self._live[node_rank] = set()
            self._last |= {(node_rank, rank): error.what for rank in processes}
            deadline.shorten()
        return [found.get(rank) or self._silent(node_rank, rank) for rank in sorted(wanted)]

    def _hear(self, node_rank: int, number: int, limit_s: float, found: dict[int, Said]) -> None:
        frame = self._channels[node_rank].read(limit_s)
        if frame is None:
            raise LinkLostError(what="the launcher's program on the node ended", where=self.crew.nodes[node_rank].name)
        header = frame.header
        if "error" in header:
            raise LinkLostError(what=str(header["error"]), where=self.crew.nodes[node_rank].name)
        local_rank = int(header["local_rank"])
        if "ended" in header and header["life"] != self._lives[node_rank]:
            return  # of one that was replaced since
        if "ended" in header:
            self._live[node_rank].discard(local_rank)
            self._last[node_rank, local_rank] = describe_end(header["ended"], str(header.get("stderr", "")))
        elif header["said"].get("number") == number:
            found[local_rank] = Said(node_rank=node_rank, local_rank=local_rank, answer=header["said"])

    def _silent(self, node_rank: int, local_rank: int) -> Said:
        alive = local_rank in self._live[node_rank]
        trouble = "no answer in time" if alive else self._last.get((node_rank, local_rank), "it has ended")
        return Said(node_rank=node_rank, local_rank=local_rank, trouble=trouble)


def describe_end(status: int | None, stderr: str) -> str:
    """Say how a process ended, by its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    how = "it hangs" if status is None else f"killed by signal {-status}" if status < 0 else f"exit code {status}"
    return f"{how}: {lines[-1][:300]}" if lines else how
