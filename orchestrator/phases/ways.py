"""Measures pairs of nodes for level 1: inside the world of all, or each in a world of its own, until the bad one is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from orchestrator.checks.pairs import (
    build_rounds,
    find_slow,
    find_suspects,
    pair_suspects,
    split_rounds,
    take_better,
)
from orchestrator.facts.collectives import PairFacts
from orchestrator.output.wording import count
from orchestrator.phases.exercise import Order, Said
from orchestrator.phases.worlds import MARGIN_S, World, Worlds, trouble_of, weigh

PAIR_JOIN_S = {"cpu": 5, "cuda": 15}
CPU_PAIR_SIZES = (1 << 16, 1 << 20, 1 << 20, 1 << 22, 1 << 22, 1 << 24, 1 << 24)
GPU_PAIR_SIZES = (*CPU_PAIR_SIZES, 1 << 26, 1 << 26, 1 << 28, 1 << 28)
MOST_FOR_ALL_PAIRS = 16
SEARCH_S = 90.0
"""So long the pairs of many nodes are gone through while nothing bad is found."""
MOST_HINTS = 8
MOST_AGAIN = 4
AGAIN_S = 4
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
        return self._name_suspects(found, lambda pairs: self._measure(pairs, self.worlds.firsts))

    def alone(self, hints: Sequence[int] = ()) -> tuple[PairFacts, ...]:
        """Let each pair form a world of its own: the big one did not form; hints are nodes that may know why."""
        self.worlds.revive_after_failure()
        found: list[PairFacts] = []
        rounds = self._first_rounds()
        self.worlds.tell(f"{count(len(rounds), 'round')} of pairs of nodes, each a world of its own")
        for pairs in rounds:
            found += self._join(pairs, found)
        until = time.monotonic() + SEARCH_S
        for pairs in [*self._hinted(hints, found), *self.rounds[len(rounds) :]]:
            # A slow pair is no reason why no world forms.
            if any(pair.trouble for pair in found) or time.monotonic() > until:
                break
            self.worlds.tell("more pairs of nodes: no way is closed so far")
            found += self._join(pairs, found)
        # A busy moment closes no way: what looks closed gets a second try with more time.
        closed = [(pair.first, pair.second) for pair in found if pair.trouble]
        for pairs in split_rounds(closed)[:1]:
            self.worlds.tell("closed pairs of nodes again, with more time")
            again = {(pair.first, pair.second): pair for pair in self._join(pairs, (), AGAIN_S)}
            found = [again.get((pair.first, pair.second), pair) for pair in found]
        return self._name_suspects(found, lambda pairs: self._join(pairs, found))

    def with_one(self, node: int, found: Sequence[PairFacts]) -> tuple[PairFacts, ...]:
        """Pair a node with those before it that it has not met, until a way is closed."""
        known = {(pair.first, pair.second) for pair in found}
        self.worlds.revive_after_failure()
        self.worlds.tell(f"pairs of node {node} with those before it")
        met: list[PairFacts] = []
        for other in range(node):
            if (other, node) not in known and not any(pair.trouble for pair in met):
                met += self._join([(other, node)], met)
        return (*found, *met)

    def _name_suspects(
        self, found: Sequence[PairFacts], measure: Callable[[Sequence[Pair]], list[PairFacts]]
    ) -> tuple[PairFacts, ...]:
        """Measure slow pairs again, and of many nodes the bad ones with others that are well."""
        best = {(pair.first, pair.second): pair for pair in found}
        for pairs in split_rounds(find_slow(found))[:MOST_AGAIN]:
            self.worlds.tell("slow pairs of nodes again")
            for pair in measure(pairs):
                best[pair.first, pair.second] = take_better(best[pair.first, pair.second], pair)
        if self.number > MOST_FOR_ALL_PAIRS:
            suspects = find_suspects(list(best.values()))
            for pairs in pair_suspects(suspects, list(best.values()), self.number):
                self.worlds.tell("pairs of nodes, suspects again")
                best |= {(pair.first, pair.second): pair for pair in measure(pairs)}
        return tuple(best.values())

    def _hinted(self, hints: Sequence[int], found: Sequence[PairFacts]) -> list[list[Pair]]:
        """Pair among themselves the few nodes that said most: the closed way is likely to be between two of them."""
        known = {(pair.first, pair.second) for pair in found}
        few = sorted(hints) if len(hints) <= MOST_HINTS else []
        rounds = [[(few[one], few[two]) for one, two in pairs] for pairs in build_rounds(len(few))] if few else []
        return [fresh for pairs in rounds if (fresh := [pair for pair in pairs if pair not in known])]

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

    def _join(self, pairs: Sequence[Pair], before: Sequence[PairFacts], more_s: int = 0) -> list[PairFacts]:
        dead = find_dead(before)
        tried = [pair for pair in pairs if not dead & set(pair)]
        # One that hangs because of its last peer must not be held against it with the next.
        self.worlds.revive({member for pair in tried for member in pair} & set(self.worlds.exercise.stuck()))
        limit_s = PAIR_JOIN_S[self.worlds.device] + more_s
        worlds = [World([(first, [0]), (second, [1])], leaders=True) for first, second in tried]
        joined = {said.node_rank: said for said in self.worlds.join(worlds, limit_s)}
        well = [pair for pair in tried if not trouble_between(joined, pair)]
        found = [
            PairFacts(first=pair[0], second=pair[1], trouble=trouble_between(joined, pair))
            for pair in tried
            if pair not in well
        ]
        ranks = {member: place for pair in well for place, member in enumerate(pair)}
        if well:
            found += self._measure(well, [ranks.get(rank, 0) for rank in self.worlds.nodes])
        return found


def trouble_between(joined: Mapping[int, Said], pair: Pair) -> str:
    """Say what went wrong between two nodes, by the one that can tell more; a node whose peer had no store is not asked."""
    said = sorted((joined[member] for member in pair if member in joined), key=weigh)
    return next(filter(None, map(trouble_of, said)), "" if len(said) == len(pair) else "it was not asked")


def build_pair(pair: Pair, first: Said, second: Said) -> PairFacts:
    """Put together what both sides of a pair measured."""
    trouble = trouble_between({pair[0]: first, pair[1]: second}, pair)
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
