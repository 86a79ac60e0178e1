"""Which node or link is named, from pairs that were measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.checks.pairs import Limits, build_rounds, find_blame, find_suspects, pair_suspects
from orchestrator.facts.collectives import PairFacts

GOOD = 1000.0
LIMITS = Limits(share=0.5, enough_mbs=0)
Rate = Callable[[int, int], float | None]


def measured(number: int, rate: Rate) -> list[PairFacts]:
    """Pairs of so many nodes; rate gives MB/s from one to the other, None where the way is closed."""
    pairs = []
    for first, second in itertools.combinations(range(number), 2):
        there, back = rate(first, second), rate(second, first)
        trouble = "timed out" if there is None or back is None else ""
        pairs.append(
            PairFacts(
                first=first,
                second=second,
                trouble=trouble,
                there_mbs=None if trouble else there,
                back_mbs=None if trouble else back,
            )
        )
    return pairs


def blamed(pairs: list[PairFacts]) -> tuple[list[int], list[tuple[int, int]]]:
    blame = find_blame(pairs, LIMITS)
    return sorted(blame.nodes), [(pair.first, pair.second) for pair in blame.links]


@given(st.integers(2, 40))
def test_every_pair_meets_once_and_nobody_twice_in_a_round(number: int) -> None:
    rounds = build_rounds(number)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(itertools.combinations(range(number), 2))
    for pairs in rounds:
        members = [member for pair in pairs for member in pair]
        assert len(members) == len(set(members))
    assert len(rounds) == number - 1 + number % 2


@pytest.mark.parametrize("number", [2, 3, 4, 5, 16])
def test_good_nodes_are_not_blamed(number: int) -> None:
    assert blamed(measured(number, lambda a, b: GOOD * (0.8 + 0.02 * ((a + b) % 10)))) == ([], [])


@pytest.mark.parametrize("number", [3, 4, 5, 8, 16])
@pytest.mark.parametrize("rate", [10.0, None])
def test_a_node_that_is_bad_with_all_is_named(number: int, rate: float | None) -> None:
    assert blamed(measured(number, lambda a, b: rate if 0 in (a, b) else GOOD)) == ([0], [])
    last = number - 1
    assert blamed(measured(number, lambda a, b: rate if last in (a, b) else GOOD)) == ([last], [])


@pytest.mark.parametrize("number", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("rate", [10.0, None])
def test_a_single_bad_link_is_no_nodes_fault(number: int, rate: float | None) -> None:
    if number == 2 and rate is not None:
        return  # a single pair has nothing to be slow against
    assert blamed(measured(number, lambda a, b: rate if {a, b} == {0, 1} else GOOD)) == ([], [(0, 1)])


@pytest.mark.parametrize("number", [4, 5, 8])
def test_a_slow_node_and_a_closed_link_are_both_named(number: int) -> None:
    def rate(a: int, b: int) -> float | None:
        if {a, b} == {1, 2}:
            return None
        return 10.0 if 0 in (a, b) else GOOD

    assert blamed(measured(number, rate)) == ([0], [(1, 2)])


def test_one_slow_direction_is_enough() -> None:
    assert blamed(measured(5, lambda a, b: 10.0 if (a, b) == (3, 1) else GOOD)) == ([], [(1, 3)])
    assert blamed(measured(5, lambda a, _: 10.0 if a == 3 else GOOD)) == ([3], [])


def test_two_bad_nodes() -> None:
    assert blamed(measured(8, lambda a, b: None if {2, 5} & {a, b} else GOOD)) == ([2, 5], [])


def test_what_is_enough_is_not_slow() -> None:
    pairs = measured(4, lambda a, b: 300.0 if 0 in (a, b) else GOOD)
    assert find_blame(pairs, Limits(share=0.5, enough_mbs=200)).nodes == {}
    assert list(find_blame(pairs, Limits(share=0.5, enough_mbs=400)).nodes) == [0]


def test_suspects_meet_two_new_good_nodes() -> None:
    known = [
        pair for pair in measured(20, lambda a, b: None if 7 in (a, b) else GOOD) if abs(pair.first - pair.second) == 1
    ]
    suspects = find_suspects(known)
    assert suspects == [6, 7, 8]
    rounds = pair_suspects(suspects, known, 20)
    assert len(rounds) == 2
    for pairs in rounds:
        members = [member for pair in pairs for member in pair]
        assert len(members) == len(set(members)) == 6
    again = measured(20, lambda a, b: None if 7 in (a, b) else GOOD)
    met = {pair for pairs in rounds for pair in pairs}
    assert blamed(known + [pair for pair in again if (pair.first, pair.second) in met]) == ([7], [])
