"""Says who is odd by what torch's flight recorders and NCCL's own service have counted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from orchestrator.diagnosis.case import Confidence, Odd
from orchestrator.diagnosis.hang.flight import Dump, Entry
from orchestrator.diagnosis.hang.naming import build_odd, count_ranks, is_are, name_ranks
from orchestrator.diagnosis.hang.parting import Parting, find_common
from orchestrator.diagnosis.hang.ras import Behind
from orchestrator.diagnosis.hang.stacks import Frame
from orchestrator.diagnosis.hang.words import WAITING, Group, Telling

ENOUGH = 2
"""Ranks that wait at one and the same place: that is no chance any more."""
AHEAD = 1
"""So much launched more is nothing: what a program launches, it need not wait for at once."""


def judge_parting(parting: Parting, groups: Sequence[Group]) -> Odd:
    """Say who never came, came with something else, or is stuck in what the others have behind them."""
    if parting.how == "absent":
        return _judge_absent(parting, groups)
    expected, called = parting.expected, parting.called
    assert expected is not None
    assert called is not None
    where = _where(parting, groups)
    name = name_ranks(parting.ranks)
    if parting.how == "behind":
        still = "still waits" if len(parting.ranks) == 1 else "still wait"
        cause = f"{count_ranks(parting.others)} in {_at(parting, groups)}; {name} {still} in {_entry_words(called)}"
        return build_odd("HANG", parting.ranks, cause, "likely", rule="flight recorder", where=where)
    cause = (
        f"{count_ranks(parting.others, 'called')} {_at(parting, groups)},"
        f" {name} called {called.words}{_in_brackets(_caller(called, parting.ranks, groups))}"
        if parting.ranks
        else f"at {_sequence(parting)} some ranks called {expected.words}, others {called.words}"
    )
    sure: Confidence = "certain" if parting.ranks and len(parting.others) >= ENOUGH else "likely"
    return build_odd("MISMATCH", parting.ranks, cause, sure, rule="flight recorder", where=where)


def _judge_absent(parting: Parting, groups: Sequence[Group]) -> Odd:
    wait = f"{count_ranks(parting.others)} in {_at(parting, groups)}"
    name, where = name_ranks(parting.ranks), _where(parting, groups)
    if parting.called is not None:
        # It waits as well, in another group: where most are is all that tells who is in the wrong place.
        cause = f"{wait}; {name} never came: waits in {_entry_words(parting.called)}"
        clear = len(parting.others) > len(parting.ranks) and not parting.open
        ranks = parting.ranks if clear else ()
        return build_odd(
            "MISMATCH", ranks, cause, "likely" if clear else "unknown", rule="flight recorder", where=where
        )
    telling = _telling_of(parting.ranks, groups)
    doing = f": {is_are(parting.ranks)} in {telling.phrase}" if telling is not None else ""
    return build_odd(
        "HANG", parting.ranks, f"{wait}; {name} never came{doing}", "certain", rule="flight recorder", where=where
    )


def judge_common(dumps: Sequence[Dump], ranks: Collection[int]) -> Odd | None:
    """Say that all these ranks wait in one collective; None where they do not, or where one has no recorder."""
    common = find_common(dumps)
    if common is None or not set(ranks) <= {dump.rank for dump in dumps}:
        return None
    cause = f"all {len(dumps)} ranks wait in {_entry_words(common)}"
    return build_odd("HANG", (), cause, "likely", rule="flight recorder", where=_frame_place(common.caller))


def judge_behind(
    behind: Sequence[Behind], odd: Odd | None, groups: Sequence[Group], waits: Collection[int]
) -> Odd | None:
    """Say who has launched less; who waits as well has only been overtaken, and is no odd one for that."""
    ranks = tuple(sorted({one.rank for one in behind}))
    first = min(behind, key=lambda one: one.rank)
    cause = (
        f"{'1 other rank has' if first.others == 1 else f'{first.others} other ranks have'} launched"
        f" {first.operation} up to number {first.most}, {name_ranks(ranks)} up to {first.launched}"
    )
    waiting = {rank for group in groups if group.telling.kind in WAITING for rank in group.ranks} | set(waits)
    if waiting & set(ranks):
        return replace(odd, cause=f"{odd.cause}; {cause}") if odd is not None else None
    telling = _telling_of(ranks, groups)
    doing = f": {is_are(ranks)} in {telling.phrase}" if telling is not None else ""
    where = telling.place if telling is not None else ""
    sure: Confidence = "likely" if all(one.most - one.launched > AHEAD for one in behind) else "unknown"
    return build_odd("HANG", ranks, f"{cause}{doing}", sure, rule="NCCL RAS", where=where)


def _sequence(parting: Parting) -> str:
    group = "" if parting.group in ("default_pg", "0", "") else f" of group {parting.group}"
    return f"sequence {parting.sequence}{group}"


def _at(parting: Parting, groups: Sequence[Group]) -> str:
    expected = parting.expected
    if expected is None:
        return f"a collective ({_sequence(parting)})"
    operation = expected.operation if parting.how in ("absent", "behind") else expected.words
    caller = _short(_caller(expected, parting.others, groups))
    return f"{operation} ({', '.join(filter(None, (caller, _sequence(parting))))})"


def _where(parting: Parting, groups: Sequence[Group]) -> str:
    telling = _telling_of(parting.ranks, groups)
    if telling is not None:
        return telling.place
    return _frame_place(parting.called.caller if parting.ranks and parting.called else None)


def _caller(entry: Entry, ranks: Sequence[int], groups: Sequence[Group]) -> Frame | None:
    """Find who called: as the recorder knows it, else as the stack of one that waits there tells."""
    told = _telling_of(ranks, groups)
    return entry.caller or (told.caller if told is not None and told.kind == "collective" else None)


def _telling_of(ranks: Sequence[int], groups: Sequence[Group]) -> Telling | None:
    """Say what the first of some ranks does, as its stack tells."""
    return next((group.telling for group in groups if ranks and ranks[0] in group.ranks), None)


def _entry_words(entry: Entry) -> str:
    return f"{entry.operation} ({_short(entry.caller)}{', ' if entry.caller else ''}sequence {entry.sequence})"


def _short(frame: Frame | None) -> str:
    return "" if frame is None else f"{frame.file.rpartition('/')[2]}:{frame.line}"


def _in_brackets(frame: Frame | None) -> str:
    return f" ({_short(frame)})" if frame is not None else ""


def _frame_place(frame: Frame | None) -> str:
    return f"{frame.place} in {frame.function}" if frame is not None else ""
