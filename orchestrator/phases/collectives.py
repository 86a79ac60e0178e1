"""Level 1: real collectives over the nodes, each alone, all together, and pair by pair until the bad one is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.checks.pairs import build_rounds, find_suspects, pair_suspects
from orchestrator.facts.collectives import CollectivesFacts, PairFacts, ProcessFacts, ReduceRow, WorldFacts
from orchestrator.output.wording import count
from orchestrator.phases.exercise import Crew, Exercise, Said
from orchestrator.plan.ranks import build_first_ranks

PREPARE_S = 90.0
"""A first import of torch from a slow disk."""
JOIN_S = 8
PAIR_JOIN_S = 5
MARGIN_S = 12.0
JOIN_MARGIN_S = 6.0
"""Whoever is silent for so long after the limit hangs, and is started anew."""
CPU_SIZES = (8, 1 << 16, 1 << 20, 1 << 24)
GPU_SIZES = (8, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 30)
PAIR_SIZES = (1 << 16, 1 << 20, 1 << 20, 1 << 22, 1 << 22, 1 << 24, 1 << 24)
EACH_S = 0.4
REDUCE_S = 12.0
MOST_FOR_ALL_PAIRS = 16
DEAD_AFTER = 3
"""A node that failed in so many rounds and was well in none is left out of the next."""

Pair = tuple[int, int]


def run_collectives(crew: Crew, tell: Callable[[str], None]) -> CollectivesFacts:
    """Run everything of level 1; what fails is a value, and nothing is left on the nodes.

    Raises:
        AortaError: a node that cannot start the program at all.
    """
    with Exercise(crew, "collectives", {}) as exercise:
        return _Level(crew, exercise, tell).run()


class _Level:
    """One pass over all the rounds."""

    def __init__(self, crew: Crew, exercise: Exercise, tell: Callable[[str], None]) -> None:
        self.crew = crew
        self.exercise = exercise
        self.tell = tell
        self.ranks = range(len(crew.nodes))
        self.counts = [crew.processes(rank) for rank in self.ranks]
        self.firsts = build_first_ranks(self.counts)
        self.device = crew.device
        self.worlds = 0

    def run(self) -> CollectivesFacts:
        self.tell("importing torch on every node")
        processes = self.prepare(self.ranks)
        found = CollectivesFacts(device=self.device, processes=processes)
        if any(process.trouble for process in processes):
            return found
        self.tell("collectives on each node alone")
        alone = tuple(self.alone(rank) for rank in self.ranks if self.counts[rank] > 1)
        if len(self.ranks) < 2:  # noqa: PLR2004 - one node has nobody to speak with
            return found.model_copy(update={"alone": alone})
        self.tell("collectives over all nodes")
        world, transports = self.world()
        pairs = self.pairs_within() if world.formed else self.pairs_alone()
        update = {"alone": alone, "world": world, "pairs": pairs, "transports": transports}
        return found.model_copy(update=update)

    def prepare(self, ranks: Sequence[int]) -> tuple[ProcessFacts, ...]:
        answers = self.exercise.ask({rank: {"op": "prepare", "device": self.device} for rank in ranks}, PREPARE_S)
        return tuple(
            ProcessFacts(
                node_rank=said.node_rank,
                local_rank=said.local_rank,
                trouble=trouble_of(said),
                **{
                    key: said.answer[key]
                    for key in ("import_s", "devices", "model", "gloo", "nccl")
                    if key in said.answer
                }
                if said.answer
                else {},
            )
            for said in answers
        )

    def join(self, members: Sequence[tuple[int, Sequence[int]]], size: int, limit_s: int) -> list[Said]:
        """Form a world of some nodes, each with its ranks in it; the first one hosts its store."""
        self.worlds += 1
        host = members[0][0]
        addr = self.crew.places[host].address
        (hosted,) = self.exercise.ask({host: {"op": "host", "addr": addr, "timeout_s": limit_s, "only": 0}}, MARGIN_S)
        if trouble_of(hosted) or hosted.answer is None:
            return [hosted]
        order = {
            "op": "join",
            "addr": addr,
            "port": hosted.answer["port"],
            "name": f"world{self.worlds}",
            "size": size,
            "timeout_s": limit_s,
        }
        return self.exercise.ask(
            {rank: {**order, "ranks": list(mine)} for rank, mine in members}, limit_s + JOIN_MARGIN_S
        )

    def measure(self, ranks: Sequence[int], size: int, node_rank: int | None) -> tuple[WorldFacts, list[Said]]:
        sums = self.exercise.ask({rank: {"op": "sums"} for rank in ranks}, JOIN_S + MARGIN_S)
        wrong = tuple((said.node_rank, text) for said in sums if said.answer for text in said.answer.get("wrong", ()))
        troubles = list(troubles_of(sums))
        sizes = GPU_SIZES if self.device == "cuda" else CPU_SIZES
        order = {"op": "reduce", "sizes": sizes, "each_s": EACH_S, "limit_s": REDUCE_S}
        reduced = [] if troubles else self.exercise.ask(dict.fromkeys(ranks, order), REDUCE_S + JOIN_S + MARGIN_S)
        troubles += troubles_of(reduced)
        rows: list[dict[str, Any]] = next(
            (said.answer["rows"] for said in reduced if said.answer and "rows" in said.answer), []
        )
        world = WorldFacts(
            node_rank=node_rank,
            size=size,
            formed=True,
            troubles=tuple(troubles),
            wrong=wrong,
            rows=tuple(ReduceRow(**row) for row in rows),
        )
        return world, reduced

    def alone(self, rank: int) -> WorldFacts:
        count = self.counts[rank]
        joined = self.join([(rank, range(count))], count, JOIN_S)
        if troubles_of(joined):
            return WorldFacts(node_rank=rank, size=count, troubles=troubles_of(joined))
        return self.measure([rank], count, rank)[0]

    def world(self) -> tuple[WorldFacts, tuple[tuple[int, str], ...]]:
        size = sum(self.counts)
        members = [(rank, range(self.firsts[rank], self.firsts[rank] + self.counts[rank])) for rank in self.ranks]
        joined = self.join(members, size, JOIN_S)
        if troubles_of(joined):
            return WorldFacts(size=size, troubles=troubles_of(joined)), ()
        world, reduced = self.measure(self.ranks, size, None)
        if world.troubles:
            return world.model_copy(update={"formed": False}), ()
        chosen = {said.node_rank: str(said.answer.get("transport", "")) for said in reduced if said.answer}
        return world, tuple((rank, name) for rank, name in sorted(chosen.items()) if name)

    def pairs_within(self) -> tuple[PairFacts, ...]:
        """Measure pairs inside the world that has formed: disjoint ones at the same time."""
        rounds = build_rounds(len(self.ranks))
        if len(self.ranks) > MOST_FOR_ALL_PAIRS:
            rounds = rounds[:2]
        found: list[PairFacts] = []
        self.tell(f"{count(len(rounds), 'round')} of pairs of nodes")
        for pairs in rounds:
            found += self.measure_pairs(pairs, self.firsts)
        if len(self.ranks) > MOST_FOR_ALL_PAIRS:
            for pairs in pair_suspects(find_suspects(found), found, len(self.ranks)):
                self.tell("pairs of nodes, suspects again")
                found += self.measure_pairs(pairs, self.firsts)
        return tuple(found)

    def measure_pairs(self, pairs: Sequence[Pair], world_ranks: Sequence[int]) -> list[PairFacts]:
        orders = {}
        for first, second in pairs:
            for me, other in ((first, second), (second, first)):
                peer = world_ranks[other]
                orders[me] = {"op": "pair", "peer": peer, "first": me == first, "sizes": PAIR_SIZES, "only": 0}
        answers = {said.node_rank: said for said in self.exercise.ask(orders, 2 * JOIN_S + MARGIN_S)}
        return [build_pair(pair, answers[pair[0]], answers[pair[1]]) for pair in pairs]

    def pairs_alone(self) -> tuple[PairFacts, ...]:
        """Let each pair form a world of its own: the big one did not form."""
        self.revive()
        rounds = build_rounds(len(self.ranks))
        if len(self.ranks) > MOST_FOR_ALL_PAIRS:
            rounds = rounds[:2]
        found: list[PairFacts] = []
        self.tell(f"{count(len(rounds), 'round')} of pairs of nodes, each a world of its own")
        for pairs in rounds:
            dead = find_dead(found)
            found += self.join_pairs([pair for pair in pairs if not dead & set(pair)])
        if len(self.ranks) > MOST_FOR_ALL_PAIRS:
            for pairs in pair_suspects(find_suspects(found), found, len(self.ranks)):
                self.tell("pairs of nodes, suspects again")
                found += self.join_pairs(pairs)
        return tuple(found)

    def join_pairs(self, pairs: Sequence[Pair]) -> list[PairFacts]:
        self.worlds += 1
        hosts = {
            first: {"op": "host", "addr": self.crew.places[first].address, "timeout_s": PAIR_JOIN_S, "only": 0}
            for first, _ in pairs
        }
        hosted = {said.node_rank: said for said in self.exercise.ask(hosts, MARGIN_S)}
        orders = {}
        for first, second in pairs:
            answer = hosted[first].answer or {}
            for rank, member in enumerate((first, second)):
                orders[member] = {
                    "op": "join",
                    "addr": self.crew.places[first].address,
                    "port": answer.get("port", 1),
                    "name": f"pair{self.worlds}",
                    "size": 2,
                    "ranks": [rank],
                    "timeout_s": PAIR_JOIN_S,
                    "only": 0,
                }
        joined = {said.node_rank: said for said in self.exercise.ask(orders, PAIR_JOIN_S + JOIN_MARGIN_S)}
        well = [pair for pair in pairs if not any(trouble_of(joined[member]) for member in pair)]
        found = [build_pair(pair, joined[pair[0]], joined[pair[1]]) for pair in pairs if pair not in well]
        ranks = {member: place for pair in well for place, member in enumerate(pair)}
        if well:
            found += self.measure_pairs(well, [ranks.get(rank, 0) for rank in self.ranks])
        return found

    def revive(self) -> None:
        """Start processes anew where the failed world took them along: NCCL ends its process, a hung one never answers."""
        broken = list(self.ranks) if self.device == "cuda" else self.exercise.stuck()
        if broken:
            self.exercise.restart(broken)
            self.prepare(broken)


def trouble_of(said: Said) -> str:
    """Say why a process did not do what it was told; empty when it did."""
    if said.answer is None:
        return said.trouble or "no answer"
    return str(said.answer.get("error", ""))


def troubles_of(answers: Sequence[Said]) -> tuple[tuple[int, str], ...]:
    """Give the first trouble of every node that has one."""
    found: dict[int, str] = {}
    for said in answers:
        if trouble := trouble_of(said):
            found.setdefault(said.node_rank, trouble)
    return tuple(sorted(found.items()))


def build_pair(pair: Pair, first: Said, second: Said) -> PairFacts:
    """Put together what both sides of a pair measured."""
    trouble = trouble_of(first) or trouble_of(second)
    if trouble or first.answer is None or second.answer is None:
        return PairFacts(first=pair[0], second=pair[1], trouble=trouble)
    rates = [
        round(said.answer["bytes"] / max(said.answer["seconds"], 1e-9) / 1e6, 3)
        for said in (first, second)
        if said.answer
    ]
    latency_ms = round(min(first.answer["latency_ms"], second.answer["latency_ms"]), 4)
    return PairFacts(first=pair[0], second=pair[1], latency_ms=latency_ms, there_mbs=rates[0], back_mbs=rates[1])


def find_dead(pairs: Sequence[PairFacts]) -> set[int]:
    """Find nodes that failed with several peers and were well with none: each further round would cost seconds."""
    failed: dict[int, int] = {}
    well: set[int] = set()
    for pair in pairs:
        for member in (pair.first, pair.second):
            if pair.trouble:
                failed[member] = failed.get(member, 0) + 1
            else:
                well.add(member)
    return {member for member, number in failed.items() if number >= DEAD_AFTER and member not in well}
