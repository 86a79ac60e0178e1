"""Which node or which link is bad, told from pairs of nodes that were measured."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import field

from orchestrator.facts.collectives import PairFacts
from orchestrator.light_dataclass import dataclass

Pair = tuple[int, int]
Trouble = tuple[int, str]
SUSPECT_SHARE = 0.5
SILENT = "no answer in time"
SYMPTOM = re.compile("did not come within|[Tt]imed out|[Cc]onnection (?:closed|reset)")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a pair is slow: below a share of what the good ones do, and below a rate that is enough anyway."""

    share: float = SUSPECT_SHARE
    enough_mbs: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Nodes that are bad with most of their peers, and the links that are left bad between good ones."""

    usual_mbs: float = 0.0
    """What a good pair does."""
    nodes: dict[int, tuple[PairFacts, ...]] = field(default_factory=dict)
    links: tuple[PairFacts, ...] = ()


def build_rounds(number: int) -> list[list[Pair]]:
    """Pair every node with every other once, in rounds of disjoint pairs: the circle method."""
    ring: list[int | None] = [*range(number), *([None] if number % 2 else [])]
    half = len(ring) // 2
    rounds: list[list[Pair]] = []
    for _ in range(len(ring) - 1):
        both = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append([(min(one, two), max(one, two)) for one, two in both if one is not None and two is not None])
        # The first stays, the others go round.
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def usual_rate(pairs: Sequence[PairFacts]) -> float:
    """Give the rate of the good pairs: one slow node spoils most pairs of a small cluster, so the upper ones count."""
    rates = sorted(rate for pair in pairs for rate in (pair.there_mbs, pair.back_mbs) if rate is not None)
    # Of three pairs a slow node spoils two.
    best = rates[-max(1, len(rates) // 3) :]
    return statistics.median(best) if best else 0.0


def is_slow(rate: float | None, usual: float, limits: Limits) -> bool:
    """Tell whether one direction is slow."""
    return rate is not None and rate < limits.share * usual and (not limits.enough_mbs or rate < limits.enough_mbs)


def is_bad(pair: PairFacts, usual: float, limits: Limits) -> bool:
    """Tell whether a pair failed or is slow in either direction."""
    return bool(pair.trouble) or is_slow(pair.there_mbs, usual, limits) or is_slow(pair.back_mbs, usual, limits)


def find_blame(pairs: Sequence[PairFacts], limits: Limits) -> Blame:
    """Take the worst node away until no node is bad with half of its peers; what is then left bad is a link."""
    usual = usual_rate(pairs)
    left = list(pairs)
    nodes: dict[int, tuple[PairFacts, ...]] = {}
    while True:
        shares = _bad_shares(left, usual, limits)
        if not shares:
            break
        node, (bad, all_of_it) = max(shares.items(), key=lambda item: (item[1][0] / item[1][1], item[1][0]))
        rivals = [other for other, share in shares.items() if share == (bad, all_of_it) and other != node]
        # With a single bad pair nobody can tell which end it is; so with two ends that are equally bad.
        if bad < 2 or 2 * bad < all_of_it or _one_link(node, rivals, left, usual, limits):  # noqa: PLR2004 - see above
            break
        nodes[node] = tuple(pair for pair in left if node in (pair.first, pair.second) and is_bad(pair, usual, limits))
        left = [pair for pair in left if node not in (pair.first, pair.second)]
    links = tuple(pair for pair in left if is_bad(pair, usual, limits))
    return Blame(usual_mbs=usual, nodes=nodes, links=links)


def _one_link(node: int, rivals: Sequence[int], left: Sequence[PairFacts], usual: float, limits: Limits) -> bool:
    """Tell whether all that is bad about a node is bad about one rival as well: then it is the link between them."""
    bad = [pair for pair in left if node in (pair.first, pair.second) and is_bad(pair, usual, limits)]
    return any(all(rival in (pair.first, pair.second) for pair in bad) for rival in rivals)


def _bad_shares(pairs: Sequence[PairFacts], usual: float, limits: Limits) -> dict[int, tuple[int, int]]:
    """Count for every node that has a bad pair: the bad ones, and all."""
    counts: dict[int, list[int]] = {}
    for pair in pairs:
        for member in (pair.first, pair.second):
            count = counts.setdefault(member, [0, 0])
            count[0] += is_bad(pair, usual, limits)
            count[1] += 1
    return {member: (bad, number) for member, (bad, number) in counts.items() if bad}


def find_suspects(pairs: Sequence[PairFacts]) -> list[int]:
    """List the nodes that have a bad pair."""
    usual = usual_rate(pairs)
    return sorted({member for pair in pairs if is_bad(pair, usual, Limits()) for member in (pair.first, pair.second)})


def pair_suspects(suspects: Sequence[int], pairs: Sequence[PairFacts], number: int) -> list[list[Pair]]:
    """Pair each suspect with two nodes that are well, so that what is bad with all of them is the suspect itself."""
    known = {(pair.first, pair.second) for pair in pairs}
    good = [rank for rank in range(number) if rank not in suspects]
    rounds: list[list[Pair]] = []
    for _ in range(2):
        free, chosen = list(good), []
        for suspect in suspects:
            partner = next((rank for rank in free if (min(rank, suspect), max(rank, suspect)) not in known), None)
            if partner is None:
                continue
            pair = (min(partner, suspect), max(partner, suspect))
            free.remove(partner)
            known.add(pair)
            chosen.append(pair)
        if chosen:
            rounds.append(chosen)
    return rounds


def find_causes(troubles: Sequence[Trouble]) -> list[Trouble]:
    """Of what nodes say about a world that did not form, take what is nearest to the cause.

    Who only saw that others did not come, or went away, does not know why; who hangs is nearer, a reason is nearest.
    """
    silent = [one for one in troubles if one[1] == SILENT]
    reasons = [one for one in troubles if one[1] != SILENT and not SYMPTOM.search(one[1])]
    return reasons or silent or list(troubles)


def find_slow(pairs: Sequence[PairFacts]) -> list[Pair]:
    """List the pairs that are slow, not closed."""
    usual = usual_rate(pairs)
    return [(pair.first, pair.second) for pair in pairs if not pair.trouble and is_bad(pair, usual, Limits())]


def split_rounds(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Put pairs into as few rounds of disjoint ones as come of taking each where there is room."""
    rounds: list[list[Pair]] = []
    for pair in pairs:
        room = next((chosen for chosen in rounds if not {member for one in chosen for member in one} & set(pair)), None)
        if room is None:
            rounds.append([pair])
        else:
            room.append(pair)
    return rounds


def take_better(one: PairFacts, other: PairFacts) -> PairFacts:
    """Of two measurements of the same pair take what is better of each: a busy moment makes slow, nothing makes fast."""
    if other.trouble:
        return one
    best = {
        name: pick(value for value in (getattr(one, name), getattr(other, name)) if value is not None)
        for name, pick in (("there_mbs", max), ("back_mbs", max), ("latency_ms", min))
        if getattr(one, name) is not None or getattr(other, name) is not None
    }
    return one.model_copy(update=best)
