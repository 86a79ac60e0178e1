"""Sets of time as lists of disjoint intervals in order, each (begin, end) in whole nanoseconds, the end left out."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Intervals = list[tuple[int, int]]
HELD_AT_LEAST = 100_000


def unite(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """Unite intervals in any order, overlapping or not; what lies in two of them counts once."""
    united: Intervals = []
    begin = end = None
    for one, other in sorted(intervals):
        if other <= one:
            continue
        if end is None or begin is None or one > end:
            if begin is not None and end is not None:
                united.append((begin, end))
            begin, end = one, other
        elif other > end:
            end = other
    if begin is not None and end is not None:
        united.append((begin, end))
    return united


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Find what lies in both."""
    both: Intervals = []
    i = j = 0
    while i < len(left) and j < len(right):
        begin, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if begin < end:
            both.append((begin, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return both


def cut(intervals: Intervals, begin: int, end: int) -> Intervals:
    """Find what lies between two moments, without looking at all the rest: there may be a thousand steps to cut out."""
    first = bisect_right(intervals, (begin, begin))
    if first and intervals[first - 1][1] > begin:
        first -= 1
    beyond = bisect_right(intervals, (end, end), lo=first)
    return [
        (max(one, begin), min(other, end))
        for one, other in intervals[first:beyond]
        if max(one, begin) < min(other, end)
    ]


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Find what lies in the left one alone."""
    rest: Intervals = []
    j = 0
    for first, end in left:
        begin = first
        while j < len(right) and right[j][1] <= begin:
            j += 1
        k = j
        while k < len(right) and right[k][0] < end:
            if right[k][0] > begin:
                rest.append((begin, right[k][0]))
            begin = max(begin, right[k][1])
            k += 1
        if begin < end:
            rest.append((begin, end))
    return rest


def length(intervals: Intervals) -> int:
    """Add up how long they are, in nanoseconds."""
    return sum(end - begin for begin, end in intervals)


class Gathered:
    """Intervals as they come, in any order; those that touch are put together now and then, so that few are held."""

    def __init__(self) -> None:
        self._spans: Intervals = []
        self._full = HELD_AT_LEAST

    def add(self, span: tuple[int, int]) -> None:
        """Take one interval."""
        self._spans.append(span)
        if len(self._spans) >= self._full:
            self._spans = unite(self._spans)
            # Twice of what is left: where nothing touches, all of it must not be sorted again for each that comes.
            self._full = max(HELD_AT_LEAST, 2 * len(self._spans))

    def unite(self) -> Intervals:
        """Give all that came as one set."""
        return unite(self._spans)
