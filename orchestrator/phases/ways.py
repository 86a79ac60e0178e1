"""Measures pairs of nodes for level 1: inside the world of all, or each in a world of its own, until the bad one is known."""

from __future__ import annotations

import time
from collections.abc import Sequence

from orchestrator.checks.pairs import build_rounds, find_suspects, pair_suspects
from orchestrator.facts.collectives import PairFacts
from orchestrator.output.wording import count
from orchestrator.phases.exercise import Order, Said
from orchestrator.phases.worlds import MARGIN_S, World, Worlds, trouble_of

PAIR_JOIN_S = {"cpu": 5, "cuda": 15}
CPU_PAIR_SIZES = (1 << 16, 1 << 20, 1 << 20, 1 << 22, 1 << 22, 1 << 24, 1 << 24)
GPU_PAIR_SIZES = (*CPU_PAIR_SIZES, 1 << 26, 1 << 26, 1 << 28, 1 << 28)
MOST_FOR_ALL_PAIRS = 16
SEARCH_S = 90.0
"""So long the pairs of many nodes are gone through while nothing bad is found."""
DEAD_AFTER = 3
"""A node that failed in so many rounds and was well in none is left out of the next."""

Pair = tuple[int, int]


class Ways:
    """The pairs of one level 1."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds = worlds
        self.number = len(worlds.nodes)
        self.rounds = build_rounds(self.number)

    def within(self) -> tuple[PairFacts, ...]:
        """Measure pairs inside the world that has formed: disjoint ones at the same time."""
        found: list[PairFacts] = []
        rounds = self._first_rounds()
        self.worlds.tell(f"{count(len(rounds), 'round')} of pairs of nodes")
        for pairs in rounds:
            found += self._measure(pairs, self.worlds.firsts)
            if any(pair.trouble for pair in found):
                # What failed may have broken the world for all that would come after.
                return self.alone()
        if self.number > MOST_FOR_ALL_PAIRS:
            for pairs in pair_suspects(find_suspects(found), found, self.number):
                self.worlds.tell("pairs of nodes, suspects again")
                found += self._measure(pairs, self.worlds.firsts)
        return tuple(found)

    def alone(self) -> tuple[PairFacts, ...]:
        """Let each pair form a world of its own: the big one did not form."""
        self.worlds.revive_after_failure()
        found: list[PairFacts] = []
        rounds = self._first_rounds()
        self.worlds.tell(f"{count(len(rounds), 'round')} of pairs of nodes, each a world of its own")
        for pairs in rounds:
            found += self._join(pairs, found)
        if self.number > MOST_FOR_ALL_PAIRS:
            until = time.monotonic() + SEARCH_S
            for pairs in self.rounds[len(rounds) :]:
                if find_suspects(found) or time.monotonic() > until:
                    break
                self.worlds.tell("more pairs of nodes: all are well so far")
                found += self._join(pairs, found)
            for pairs in pair_suspects(find_suspects(found), found, self.number):
                self.worlds.tell("pairs of nodes, suspects again")
                found += self._join(pairs, found)
        return tuple(found)

    def _first_rounds(self) -> list[list[Pair]]:
        return self.rounds[:2] if self.number > MOST_FOR_ALL_PAIRS else self.rounds

    def _measure(self, pairs: Sequence[Pair], world_ranks: Sequence[int]) -> list[PairFacts]:
        sizes = GPU_PAIR_SIZES if self.worlds.device == "cuda" else CPU_PAIR_SIZES
        orders: dict[int, Order] = {}
        for first, second in pairs:
            for me, other in ((first, second), (second, first)):
                peer = world_ranks[other]
                orders[me] = {"op": "pair", "peer": peer, "first": me == first, "sizes": sizes, "only": 0}
        limit_s = 2 * self.worlds.join_s(2) + MARGIN_S
        answers = {said.node_rank: said for said in self.worlds.exercise.ask(orders, limit_s)}
        return [build_pair(pair, answers[pair[0]], answers[pair[1]]) for pair in pairs]

    def _join(self, pairs: Sequence[Pair], before: Sequence[PairFacts]) -> list[PairFacts]:
        dead = find_dead(before)
        tried = [pair for pair in pairs if not dead & set(pair)]
        # One that hangs because of its last peer must not be held against it with the next.
        self.worlds.revive({member for pair in tried for member in pair} & set(self.worlds.exercise.stuck()))
        worlds = [World([(first, [0]), (second, [1])], leaders=True) for first, second in tried]
        joined = {said.node_rank: said for said in self.worlds.join(worlds, PAIR_JOIN_S[self.worlds.device])}
        well = [pair for pair in tried if all(trouble_in(joined, member) == "" for member in pair)]
        found = [
            PairFacts(
                first=pair[0], second=pair[1], trouble=trouble_in(joined, pair[0]) or trouble_in(joined, pair[1]) or "?"
            )
            for pair in tried
            if pair not in well
        ]
        ranks = {member: place for pair in well for place, member in enumerate(pair)}
        if well:
            found += self._measure(well, [ranks.get(rank, 0) for rank in self.worlds.nodes])
        return found


def trouble_in(joined: dict[int, Said], member: int) -> str | None:
    """Say what went wrong for a node; None when it was not even asked, because the other had no store."""
    return trouble_of(joined[member]) if member in joined else None


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
