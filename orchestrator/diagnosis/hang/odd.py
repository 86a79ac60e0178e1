"""Finds the ranks that do something else than the ranks that wait for them: from stacks, and from flight recorders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from orchestrator.diagnosis.case import Confidence, Odd
from orchestrator.diagnosis.hang.flight import Dump, Entry
from orchestrator.diagnosis.hang.parting import Parting, find_common, find_parting
from orchestrator.diagnosis.hang.ras import Behind
from orchestrator.diagnosis.hang.stacks import Frame, Stack, merge_stacks
from orchestrator.diagnosis.hang.words import WAITING, Group, Telling, fold_stacks, shorten_files

MOST_NAMED = 4
ENOUGH = 2
"""Ranks that wait at one and the same place: that is no chance any more."""
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "broadcast_object_list", "scatter_object_list"})
"""One rank has a part of its own in these, and often a line of its own."""


def find_odd(stacks: Sequence[Stack], dumps: Sequence[Dump], behind: Sequence[Behind] = ()) -> Odd | None:
    """Find who is odd; None where there is nothing to compare, no ranks where all do the same.

    `behind` is what NCCL itself counts: ranks that have launched less than the others.
    """
    groups = fold_stacks(shorten_files(merge_stacks(stacks)))
    parting = find_parting(dumps)
    if parting is not None and parting.ranks:
        return _judge_parting(parting, groups)
    odd = _judge_groups(groups)
    if parting is not None and (odd is None or not odd.ranks):
        return _judge_parting(parting, groups)
    if behind and (odd is None or not odd.ranks):
        return _judge_behind(behind, groups)
    common = find_common(dumps)
    if odd is None and common is not None:
        cause = f"all {len(dumps)} ranks wait in {_entry_words(common)}"
        return _odd("HANG", (), cause, "likely", rule="flight recorder", where=_frame_place(common.caller))
    return odd


# -- flight recorders


def _judge_parting(parting: Parting, groups: Sequence[Group]) -> Odd:
    expected, called = parting.expected, parting.called
    telling = _telling_of(parting.ranks, groups)
    where = telling.place if telling is not None else _frame_place(called.caller if called else None)
    if parting.how == "absent":
        wait = f"{_count(parting.others)} in {_at(parting, groups)}"
        name = name_ranks(parting.ranks)
        if called is not None:
            cause = f"{wait}; {name} never came: waits in {_entry_words(called)}"
            return _odd("MISMATCH", parting.ranks, cause, "likely", rule="flight recorder", where=where)
        doing = f": {is_are(parting.ranks)} in {telling.phrase}" if telling is not None else ""
        cause = f"{wait}; {name} never came{doing}"
        return _odd("HANG", parting.ranks, cause, "certain", rule="flight recorder", where=where)
    assert expected is not None
    assert called is not None
    cause = (
        f"{_count(parting.others, 'called')} {_at(parting, groups)},"
        f" {name_ranks(parting.ranks)} called {called.words}{_in_brackets(_caller(called, parting.ranks, groups))}"
    )
    if not parting.ranks:
        cause = f"at {_sequence(parting)} some ranks called {expected.words}, others {called.words}"
        return _odd("MISMATCH", (), cause, "likely", rule="flight recorder", where=where)
    sure: Confidence = "certain" if len(parting.others) >= ENOUGH else "likely"
    return _odd("MISMATCH", parting.ranks, cause, sure, rule="flight recorder", where=where)


def _judge_behind(behind: Sequence[Behind], groups: Sequence[Group]) -> Odd:
    ranks = tuple(sorted({one.rank for one in behind}))
    first = min(behind, key=lambda one: one.rank)
    telling = _telling_of(ranks, groups)
    cause = (
        f"{'1 other rank has' if first.others == 1 else f'{first.others} other ranks have'} launched"
        f" {first.operation} up to number {first.most}, {name_ranks(ranks)} up to {first.launched}"
    )
    doing = f": {is_are(ranks)} in {telling.phrase}" if telling is not None else ""
    where = telling.place if telling is not None else ""
    return _odd("HANG", ranks, f"{cause}{doing}", "likely", rule="NCCL RAS", where=where)


def _sequence(parting: Parting) -> str:
    group = "" if parting.group in ("default_pg", "0", "") else f" of group {parting.group}"
    return f"sequence {parting.sequence}{group}"


def _at(parting: Parting, groups: Sequence[Group]) -> str:
    expected = parting.expected
    if expected is None:
        return f"a collective ({_sequence(parting)})"
    operation = expected.operation if parting.how == "absent" else expected.words
    caller = _short(_caller(expected, parting.others, groups))
    return f"{operation} ({', '.join(filter(None, (caller, _sequence(parting))))})"


def _caller(entry: Entry, ranks: Sequence[int], groups: Sequence[Group]) -> Frame | None:
    """Find who called: as the recorder knows it, else as the stack of one that waits there tells."""
    told = _telling_of(ranks, groups)
    return entry.caller or (told.caller if told is not None and told.kind == "collective" else None)


def _entry_words(entry: Entry) -> str:
    return f"{entry.operation} ({_short(entry.caller)}{', ' if entry.caller else ''}sequence {entry.sequence})"


def _short(frame: Frame | None) -> str:
    return "" if frame is None else f"{frame.file.rpartition('/')[2]}:{frame.line}"


def _in_brackets(frame: Frame | None) -> str:
    return f" ({_short(frame)})" if frame is not None else ""


def _frame_place(frame: Frame | None) -> str:
    return f"{frame.place} in {frame.function}" if frame is not None else ""


# -- stacks


def _judge_groups(groups: Sequence[Group]) -> Odd | None:
    if not groups:
        return None
    stopped = [group for group in groups if group.telling.kind == "stopped"]
    if stopped and len(stopped) < len(groups):
        return _name_outside(stopped, [group for group in groups if group not in stopped])
    if len(groups) == 1:
        return _all_alike(groups[0])
    waiting = [group for group in groups if group.telling.kind in WAITING]
    outside = [group for group in groups if group.telling.kind not in (*WAITING, "unknown")]
    if waiting and outside:
        return _name_outside(outside, waiting)
    if waiting:
        return _judge_waiting(waiting, [group for group in groups if group not in waiting])
    return _judge_minority(groups)


def _all_alike(group: Group) -> Odd:
    ranks = group.ranks
    who = f"all {len(ranks)} ranks" if len(ranks) > 1 else name_ranks(ranks)
    confidence: Confidence = "likely" if len(ranks) > 1 and group.telling.kind != "unknown" else "unknown"
    return _odd("HANG", (), f"{who} {_does(group)}", confidence, where=group.telling.place)


def _name_unknown(waiting: Group, unknown: Sequence[Group]) -> Odd:
    """Name nobody for being the one whose stack could not be had; that it could not is said."""
    said = [f"{_count(waiting.ranks, '')}{_does(waiting)}"]
    said += [f"of {name_ranks(group.ranks)} only {group.telling.word} is known" for group in unknown[:MOST_NAMED]]
    return _odd("HANG", (), ", ".join(said), "unknown", where=waiting.telling.place)


def _name_outside(outside: Sequence[Group], waiting: Sequence[Group]) -> Odd:
    """Name those that wait for nobody, whom the others wait for."""
    ranks = tuple(sorted(rank for group in outside for rank in group.ranks))
    alike = len({group.telling.word for group in waiting}) == 1
    sure = alike and sum(len(group.ranks) for group in waiting) >= max(ENOUGH, len(ranks))
    said = [f"{_count(group.ranks, '')}{_does(group)}" for group in waiting[:1]]
    said += [f"{name_ranks(group.ranks)} {_does(group)}" for group in outside[:MOST_NAMED]]
    where = next((group.telling.place for group in outside if ranks[0] in group.ranks), "")
    return _odd("HANG", ranks, ", ".join(said), "certain" if sure else "likely", where=where)


def _judge_waiting(waiting: Sequence[Group], unknown: Sequence[Group]) -> Odd:
    """Judge ranks that all wait: for different collectives, or for the same one at different lines."""
    if len(waiting) == 1:
        return _name_unknown(waiting[0], unknown)
    plain = [group for group in waiting if group.telling.kind == "collective" and not group.telling.point_to_point]
    by_word: dict[str, list[int]] = {}
    for group in plain:
        by_word.setdefault(group.telling.word, []).extend(group.ranks)
    if len(by_word) > 1:
        return _part_by_word(plain, by_word)
    largest, *rest = waiting
    mixed = len(plain) < len(waiting) or largest.telling.word in _ROOTED
    clear = len(largest.ranks) > sum(len(group.ranks) for group in rest)
    said = [f"{_count(largest.ranks, '')}{_does(largest)}"]
    said += [f"{name_ranks(group.ranks)} {_does(group)}" for group in rest[:MOST_NAMED]]
    if mixed or not clear:
        return _odd("HANG", (), ", ".join(said), "unknown", where=largest.telling.place)
    ranks = tuple(sorted(rank for group in rest for rank in group.ranks))
    where = next((group.telling.place for group in rest if ranks[0] in group.ranks), "")
    return _odd("MISMATCH", ranks, ", ".join(said), "likely", where=where)


def _part_by_word(plain: Sequence[Group], by_word: dict[str, list[int]]) -> Odd:
    order = sorted(by_word, key=lambda word: (-len(by_word[word]), min(by_word[word])))
    usual, others = by_word[order[0]], [rank for word in order[1:] for rank in by_word[word]]
    clear = len(usual) > len(others)
    first = {word: next(group for group in plain if group.telling.word == word) for word in order}
    said = [f"{_count(usual, '')}{_does(first[order[0]], len(usual))}"]
    said += [f"{name_ranks(by_word[word])} {_does(first[word], len(by_word[word]))}" for word in order[1:MOST_NAMED]]
    ranks = tuple(sorted(others)) if clear else ()
    where = first[order[1]].telling.place
    sure: Confidence = "certain" if clear and len(usual) >= ENOUGH else "likely"
    return _odd("MISMATCH", ranks, ", ".join(said), sure, where=where)


def _judge_minority(groups: Sequence[Group]) -> Odd:
    """Nobody is known to wait for others: the few that are elsewhere than most are odd."""
    largest, *rest = groups
    ranks = tuple(sorted(rank for group in rest for rank in group.ranks))
    said = [f"{_count(largest.ranks, '')}{_does(largest)}"]
    said += [f"{name_ranks(group.ranks)} {_does(group)}" for group in rest[:MOST_NAMED]]
    if len(largest.ranks) <= len(ranks):
        return _odd("HANG", (), ", ".join(said), "unknown", where=largest.telling.place)
    where = next((group.telling.place for group in rest if ranks[0] in group.ranks), "")
    return _odd("HANG", ranks, ", ".join(said), "likely", where=where)


def _telling_of(ranks: Sequence[int], groups: Sequence[Group]) -> Telling | None:
    """Say what the first of some ranks does, as its stack tells."""
    return next((group.telling for group in groups if ranks and ranks[0] in group.ranks), None)


def _does(group: Group, number: int | None = None) -> str:
    telling = group.telling
    many = (number or len(group.ranks)) > 1
    if telling.kind in WAITING:
        text = f"{'wait' if many else 'waits'} in {telling.phrase}"
    elif telling.kind == "stopped":
        text = f"{'are' if many else 'is'} {telling.word}"
    else:
        text = f"{'are' if many else 'is'} in {telling.phrase}"
    kernel = group.stacks[0]
    if kernel.state == "D" and kernel.frames:
        text = f"{text.removesuffix(', state D')}, state D" + (f", wchan {kernel.wchan}" if kernel.wchan else "")
    return text


# -- words


def name_ranks(ranks: Sequence[int]) -> str:
    """Name a few ranks, or say how many they are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= MOST_NAMED:
        return f"ranks {', '.join(map(str, sorted(ranks)))}"
    low, high = min(ranks), max(ranks)
    return f"ranks {low}-{high}" if high - low + 1 == len(ranks) else f"{len(ranks)} ranks"


def is_are(ranks: Sequence[int]) -> str:
    """Give the verb that goes with some ranks."""
    return "is" if len(ranks) == 1 else "are"


def _count(ranks: Sequence[int], verb: str | None = None) -> str:
    """Say how many wait, or whatever the verb says."""
    one = len(ranks) == 1
    who = f"{len(ranks)} rank" if one else f"{len(ranks)} ranks"
    if verb is None:
        return f"{who} {'waits' if one else 'wait'}"
    return f"{who} {verb}"


def _odd(
    family: Literal["HANG", "MISMATCH"],
    ranks: tuple[int, ...],
    cause: str,
    confidence: Confidence,
    *,
    rule: Literal["stacks", "flight recorder", "NCCL RAS"] = "stacks",
    where: str = "",
) -> Odd:
    return Odd(family=family, ranks=ranks, rule=rule, confidence=confidence, cause=cause, where=where)


def with_ended(odd: Odd, ended: Sequence[int]) -> Odd:
    """Name ranks that had ended already, where all that are left wait: it is these that they wait for."""
    if odd.ranks or not ended:
        return odd
    has = "has" if len(ended) == 1 else "have"
    return replace(odd, ranks=tuple(ended), cause=f"{odd.cause}; {name_ranks(ended)} {has} ended", confidence="likely")
