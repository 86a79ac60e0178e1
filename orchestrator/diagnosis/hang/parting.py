"""Finds, in the flight recorders of several ranks, where they part: who never came, and who came with something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from orchestrator.diagnosis.hang.flight import DEFAULT_GROUP, Dump, Entry
from orchestrator.light_dataclass import dataclass

_UNEVEN = frozenset(
    {"all_to_all", "alltoall", "all_to_all_single", "alltoall_base", "gather", "scatter", "coalesced", "barrier"}
)
"""What goes in there differs from rank to rank by right."""
How = Literal["absent", "behind", "operation", "sizes", "dtype"]


@dataclass(frozen=True, kw_only=True)
class Parting:
    """Where the ranks of one group part."""

    how: How
    group: str
    """What the program calls it."""
    sequence: int
    ranks: tuple[int, ...]
    """Who is odd; empty where no side is larger."""
    others: tuple[int, ...]
    expected: Entry | None
    """What the others called there."""
    called: Entry | None
    """What the first odd rank called there, or waits in elsewhere; None: it is in no collective."""
    open: bool = False
    """Of some that belong to that other collective nothing is known."""


def find_parting(dumps: Sequence[Dump]) -> Parting | None:
    """Find what the others wait for; None where the recorders show no difference."""
    mismatches, absences = [], []
    for group in sorted({group for dump in dumps for group in dump.enqueued}):
        inside = {dump.rank: dump for dump in dumps if _is_member(dump, group, dumps)}
        if len(inside) < 2:  # noqa: PLR2004 - one alone parts from nobody
            continue
        absence, mismatch = _find_absence(group, inside), _find_mismatch(group, inside)
        if mismatch is not None and (absence is None or mismatch.sequence <= absence.sequence):
            mismatches.append(mismatch)
        elif absence is not None:
            absences.append(absence)
    if mismatches:
        # A group that waits because of another one's trouble began to wait later.
        return min(mismatches, key=lambda parting: parting.expected.created_ns if parting.expected else 0)
    root = _find_root(absences, {dump.rank: dump for dump in dumps})
    return replace(root, open=_is_open(root.called, dumps)) if root is not None and root.called is not None else root


def _is_open(called: Entry, dumps: Sequence[Dump]) -> bool:
    """Tell whether somebody may be missing there of whom there is no recorder."""
    members = next((dump.members[called.group] for dump in dumps if called.group in dump.members), ())
    return not set(members) <= {dump.rank for dump in dumps}


def find_common(dumps: Sequence[Dump]) -> Entry | None:
    """Find the collective that all ranks wait in; None where they do not.

    The first that is not over is what a rank waits for: what it has called beyond that lies in a queue.
    """
    firsts = [dump.waits[0] if dump.waits else None for dump in dumps]
    first = firsts[0] if firsts else None
    if first is None or first.point_to_point or len(firsts) < 2:  # noqa: PLR2004 - one alone has nothing in common
        return None
    members = next((dump.members[first.group] for dump in dumps if first.group in dump.members), ())
    same = all(entry is not None and (entry.group, entry.sequence) == (first.group, first.sequence) for entry in firsts)
    return first if same and set(members) <= {dump.rank for dump in dumps} else None


def _is_member(dump: Dump, group: str, dumps: Sequence[Dump]) -> bool:
    told = next((other.members[group] for other in dumps if group in other.members), None)
    if told is not None:
        return dump.rank in told
    everyone = group == "0" or any(other.names.get(group) == DEFAULT_GROUP for other in dumps)
    return everyone or group in dump.enqueued


def _find_absence(group: str, inside: Mapping[int, Dump]) -> Parting | None:
    """Find who has not called what others wait in; who waits before that was overtaken, and is late no more than they.

    NCCL returns at once: whoever asks for no result is some collectives ahead of one that does, and waits in the same.
    """
    first = {rank: entry for rank, dump in inside.items() if (entry := _first_wait(dump, group)) is not None}
    for sequence in sorted({entry.sequence for entry in first.values()}):
        absent = tuple(sorted(rank for rank, dump in inside.items() if dump.enqueued.get(group, 0) < sequence))
        if not absent:
            continue
        others = tuple(sorted(rank for rank in inside if rank not in absent))
        stuck = tuple(rank for rank in absent if rank in first)
        if len(stuck) == len(absent) >= len(others):
            return None  # most are in what only a few have behind them: that tells of nobody
        ranks = stuck if len(stuck) == len(absent) else tuple(rank for rank in absent if rank not in first)
        return Parting(
            how="behind" if ranks == stuck else "absent",
            group=_name(group, inside),
            sequence=sequence,
            ranks=ranks,
            others=others,
            expected=next(entry for _, entry in sorted(first.items()) if entry.sequence == sequence),
            called=first[ranks[0]] if ranks == stuck else _waits_elsewhere(inside[ranks[0]], group),
        )
    return None


def _first_wait(dump: Dump, group: str) -> Entry | None:
    waits = [entry for entry in dump.waits if entry.group == group and not entry.point_to_point]
    return min(waits, key=lambda entry: entry.sequence, default=None)


def _find_mismatch(group: str, inside: Mapping[int, Dump]) -> Parting | None:
    found: dict[int, dict[int, Entry]] = {}
    for rank, dump in inside.items():
        for entry in dump.entries:
            if entry.group == group and not entry.point_to_point:
                found.setdefault(entry.sequence, {})[rank] = entry
    firsts = [wait.sequence for dump in inside.values() if (wait := _first_wait(dump, group)) is not None]
    for sequence in sorted(found):
        there = found[sequence]
        if sequence > max(firsts, default=0):
            break  # nobody has got there: what they wait in comes before
        # What all have behind them was well, whatever it looks like.
        if all(entry.done for entry in there.values()):
            continue
        for how, look in _LOOKS:
            parting = _part(how, look, sequence, there, _name(group, inside))
            if parting is not None:
                return parting
    return None


def _operation(entry: Entry) -> object:
    return entry.operation


def _dtypes(entry: Entry) -> object:
    return None if entry.operation in _UNEVEN else entry.dtypes


def _sizes(entry: Entry) -> object:
    return None if entry.operation in _UNEVEN or "_oop" in entry.operation else entry.sizes


_LOOKS: tuple[tuple[How, Callable[[Entry], object]], ...] = (
    ("operation", _operation),
    ("dtype", _dtypes),
    ("sizes", _sizes),
)


def _part(
    how: How, look: Callable[[Entry], object], sequence: int, there: Mapping[int, Entry], group: str
) -> Parting | None:
    seen = Counter(look(entry) for entry in there.values())
    if len(seen) < 2:  # noqa: PLR2004 - all alike
        return None
    (usual, most), (_, next_most) = seen.most_common(2)
    clear = most > next_most
    odd = tuple(sorted(rank for rank, entry in there.items() if look(entry) != usual))
    others = tuple(sorted(rank for rank in there if rank not in odd))
    return Parting(
        how=how,
        group=group,
        sequence=sequence,
        ranks=odd if clear else (),
        others=others if clear else tuple(sorted(there)),
        expected=there[others[0]],
        called=there[odd[0]],
    )


def _find_root(absences: Sequence[Parting], dumps: Mapping[int, Dump]) -> Parting | None:
    """Of several groups that miss somebody, take the one whose missing ranks do not themselves wait for another rank."""
    return min(
        absences,
        key=lambda parting: (sum(bool(dumps[rank].waits) for rank in parting.ranks), len(parting.ranks)),
        default=None,
    )


def _waits_elsewhere(dump: Dump, group: str) -> Entry | None:
    waits = [entry for entry in dump.waits if entry.group != group]
    return waits[-1] if waits else None


def _name(group: str, inside: Mapping[int, Dump]) -> str:
    return next((dump.names[group] for dump in inside.values() if group in dump.names), group)
