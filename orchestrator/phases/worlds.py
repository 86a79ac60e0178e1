"""Forms worlds of some nodes' processes for level 1, and asks them what collectives give."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from orchestrator.checks.pairs import SILENT
from orchestrator.facts.collectives import ProcessFacts, ReduceRow, WorldFacts
from orchestrator.light_dataclass import dataclass
from orchestrator.phases.exercise import Crew, Exercise, Order, Said
from orchestrator.plan.ranks import build_first_ranks

PREPARE_S = 90.0
"""A first import of torch from a slow disk."""
REVIVE_S = 60.0
JOIN_S = {"cpu": 8, "cuda": 20}
RANKS_A_SECOND = 16
"""A large world takes longer to form: everybody connects to everybody."""
MARGIN_S = 12.0
JOIN_MARGIN_S = 6.0
"""Whoever is silent for so long after the limit hangs, and is started anew."""
AFTER_TROUBLE_S = 4.0
"""Long enough for the others to say what they have seen of it."""
CPU_SIZES = (8, 1 << 16, 1 << 20, 1 << 24)
GPU_SIZES = (8, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 30)
EACH_S = 0.4
REDUCE_S = 12.0


@dataclass(frozen=True)
class World:
    """Node ranks with the ranks that their processes take; the first node hosts the store."""

    members: Sequence[tuple[int, Sequence[int]]]
    leaders: bool = False
    """Only the first process of each node is in it."""

    @property
    def size(self) -> int:
        """Count its ranks."""
        return sum(len(ranks) for _, ranks in self.members)


class Worlds:
    """The nodes of one level 1, and what their processes can be told."""

    def __init__(self, crew: Crew, exercise: Exercise, tell: Callable[[str], None]) -> None:
        self.crew = crew
        self.exercise = exercise
        self.tell = tell
        self.nodes = range(len(crew.nodes))
        self.counts = [crew.processes(rank) for rank in self.nodes]
        self.firsts = build_first_ranks(self.counts)
        on_gpus = all(fact.gpus and (fact.torch_cuda or fact.torch_hip) for fact in crew.facts)
        self.device = "cuda" if on_gpus else "cpu"
        self.number = 0

    def of_nodes(self, nodes: Iterable[int]) -> World:
        """Give the world that all processes of these nodes are."""
        members, first = [], 0
        for rank in nodes:
            members.append((rank, range(first, first + self.counts[rank])))
            first += self.counts[rank]
        return World(members)

    def join_s(self, size: int, patience: int = 1) -> int:
        """Say how long a world of so many ranks may take to form."""
        return (JOIN_S[self.device] + size // RANKS_A_SECOND) * patience

    def prepare(self, nodes: Sequence[int], limit_s: float = PREPARE_S) -> tuple[ProcessFacts, ...]:
        """Let every process import torch and touch its device."""
        answers = self.exercise.ask({rank: {"op": "prepare", "device": self.device} for rank in nodes}, limit_s)
        told = ("import_s", "devices", "model", "gloo", "nccl")
        return tuple(
            ProcessFacts(
                node_rank=said.node_rank,
                local_rank=said.local_rank,
                trouble=trouble_of(said),
                **{key: said.answer[key] for key in told if said.answer and key in said.answer},
            )
            for said in answers
        )

    def join(self, worlds: Sequence[World], limit_s: int) -> list[Said]:
        """Form several worlds at the same time, a node in one of them at most; a world without a store is no more."""
        self.number += 1
        orders: dict[int, Order] = {}
        for world in worlds:
            host = world.members[0][0]
            addr = self.crew.places[host].address
            orders[host] = {"op": "host", "addr": addr, "timeout_s": limit_s, "only": 0}
        hosted = {said.node_rank: said for said in self.exercise.ask(orders, MARGIN_S)}
        broken, joins = [], {}
        for world in worlds:
            host = world.members[0][0]
            answer = hosted[host].answer
            if trouble_of(hosted[host]) or answer is None:
                broken.append(hosted[host])
                continue
            order = {**orders[host], "op": "join", "port": answer["port"], "name": f"world{self.number}"}
            if not world.leaders:
                del order["only"]
            for rank, ranks in world.members:
                joins[rank] = {**order, "size": world.size, "ranks": list(ranks)}
        after_s = AFTER_TROUBLE_S if len(worlds) == 1 else None
        return [*broken, *self.exercise.ask(joins, limit_s + JOIN_MARGIN_S, after_s)]

    def measure(self, worlds: Mapping[int | None, World]) -> tuple[list[WorldFacts], list[Said]]:
        """Add up and measure in worlds that have formed, by the node that each is of; None is that of all nodes."""
        of = {rank: key for key, world in worlds.items() for rank, _ in world.members}
        limit_s = self.join_s(max(world.size for world in worlds.values())) + MARGIN_S
        after_s = AFTER_TROUBLE_S if len(worlds) == 1 else None
        sums = self.exercise.ask({rank: {"op": "sums"} for rank in of}, limit_s, after_s)
        broken = {of[said.node_rank] for said in sums if trouble_of(said)}
        sizes = GPU_SIZES if self.device == "cuda" else CPU_SIZES
        order = {"op": "reduce", "sizes": sizes, "each_s": EACH_S, "limit_s": REDUCE_S}
        well = [rank for rank in of if of[rank] not in broken]
        reduced = self.exercise.ask(dict.fromkeys(well, order), REDUCE_S + limit_s, after_s)
        found = [
            _build_world(
                key,
                world.size,
                [said for said in sums if of[said.node_rank] == key],
                [said for said in reduced if of[said.node_rank] == key],
            )
            for key, world in worlds.items()
        ]
        return found, reduced

    def revive(self, nodes: Iterable[int]) -> None:
        """Start processes anew."""
        if broken := sorted(nodes):
            self.exercise.restart(broken)
            self.prepare(broken, REVIVE_S)

    def revive_stuck(self) -> None:
        """Start anew those that have ended or never answered, which a failed world may have taken along."""
        self.revive(self.exercise.stuck())

    def revive_after_failure(self) -> None:
        """Start anew after a failed world: NCCL may end all of its processes, or keep them busy."""
        self.revive(self.nodes if self.device == "cuda" else self.exercise.stuck())


def _build_world(key: int | None, size: int, sums: Sequence[Said], reduced: Sequence[Said]) -> WorldFacts:
    wrong = tuple((said.node_rank, text) for said in sums if said.answer for text in said.answer.get("wrong", ()))
    rows: list[dict[str, Any]] = next(
        (said.answer["rows"] for said in reduced if said.answer and "rows" in said.answer), []
    )
    return WorldFacts(
        node_rank=key,
        size=size,
        formed=True,
        troubles=troubles_of([*sums, *reduced]),
        wrong=wrong,
        rows=tuple(ReduceRow(**row) for row in rows),
    )


def trouble_of(said: Said) -> str:
    """Say why a process did not do what it was told; empty when it did."""
    if said.answer is None:
        return said.trouble or "no answer"
    return plain(str(said.answer.get("error", "")))


def plain(text: str) -> str:
    """Say what gloo, NCCL and the store say without the places in their source, numbers of ports and names of keys."""
    text = re.sub(r"\[[^\]\s]*\.(?:cc|cpp|h):\d+\] *", "", text)
    text = re.sub(r"NCCL error in: \S+:\d+, ", "NCCL: ", text)
    text = re.sub(r"^\w*Error: wait timeout after (\d+)ms, keys: .*", r"the others did not come within \1 ms", text)
    return re.sub(r"\b(\d+)000 ?ms\b", r"\1 s", text)


def weigh(said: Said) -> int:
    """Order what went wrong: an end before an error, which it may have caused, before silence."""
    return 1 if said.answer is not None else 2 if said.trouble == SILENT else 0


def troubles_of(answers: Sequence[Said]) -> tuple[tuple[int, str], ...]:
    """Give the trouble of every node that has one, the one that tells most."""
    found: dict[int, str] = {}
    for said in sorted(answers, key=weigh):
        if trouble := trouble_of(said):
            found.setdefault(said.node_rank, trouble)
    return tuple(sorted(found.items()))
