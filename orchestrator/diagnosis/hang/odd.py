"""Finds the ranks that do something else than the ranks that wait for them: from stacks, and from flight recorders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from orchestrator.diagnosis.case import Odd
from orchestrator.diagnosis.hang.counted import ENOUGH, judge_behind, judge_common, judge_parting
from orchestrator.diagnosis.hang.flight import Dump
from orchestrator.diagnosis.hang.naming import MOST_NAMED, build_odd, count_ranks, name_ranks
from orchestrator.diagnosis.hang.parting import find_parting
from orchestrator.diagnosis.hang.ras import Behind
from orchestrator.diagnosis.hang.stacks import Stack, merge_stacks
from orchestrator.diagnosis.hang.words import WAITING, Group, Kind, fold_stacks, shorten_files

_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "broadcast_object_list", "scatter_object_list"})
"""One rank has a part of its own in these, and often a line of its own."""
_FIRM: tuple[Kind, ...] = ("data", "lock", "sleep", "disk")
"""Who does this waits for no other rank; of plain code nobody knows: it may ask a GPU for a figure, and wait for it."""


def find_odd(stacks: Sequence[Stack], dumps: Sequence[Dump], behind: Sequence[Behind] = ()) -> Odd | None:
    """Find who is odd; None where there is nothing to compare, no ranks where all do the same.

    `behind` is what NCCL itself counts: ranks that have launched less than the others.
    """
    waits = {dump.rank for dump in dumps if dump.waits}
    groups = _mark_waiting(fold_stacks(shorten_files(merge_stacks(stacks))), waits)
    parting = find_parting(dumps)
    if parting is not None and parting.ranks:
        return judge_parting(parting, groups)
    odd = _judge_groups(groups, waits, several=len({entry.group for dump in dumps for entry in dump.waits}) > 1)
    if parting is not None and (odd is None or not odd.ranks):
        return judge_parting(parting, groups)
    common = judge_common(dumps, [rank for group in groups for rank in group.ranks])
    # What all have called they have all come to: who of them looks elsewhere was only quicker to return from it.
    if common is not None and not any(group.telling.kind == "stopped" for group in groups):
        odd = replace(common, where=common.where or (odd.where if odd is not None and not odd.ranks else ""))
    if behind and (odd is None or not odd.ranks):
        return judge_behind(behind, odd, groups, waits)
    return odd


def _mark_waiting(groups: Sequence[Group], waits: Collection[int]) -> tuple[Group, ...]:
    """Let those wait whose recorder says so, where their stack shows no more than a line of code."""
    marked: list[Group] = []
    for group in groups:
        there = tuple(stack for stack in group.stacks if stack.rank in waits)
        if group.telling.kind not in ("code", "unknown") or not there:
            marked.append(group)
            continue
        marked.append(Group(telling=replace(group.telling, kind="gpu"), stacks=there))
        rest = tuple(stack for stack in group.stacks if stack not in there)
        marked += [replace(group, stacks=rest)] if rest else []
    return tuple(sorted(marked, key=lambda group: (-len(group.stacks), group.ranks)))


def _judge_groups(groups: Sequence[Group], waits: Collection[int], *, several: bool) -> Odd | None:
    if not groups:
        return None
    stopped = [group for group in groups if group.telling.kind == "stopped"]
    if stopped and len(stopped) < len(groups):
        return _name_outside(stopped, [group for group in groups if group not in stopped], waits)
    if len(groups) == 1:
        return _all_alike(groups[0])
    waiting = [group for group in groups if group.telling.kind in WAITING]
    outside = [group for group in groups if group.telling.kind not in (*WAITING, "unknown")]
    if waiting and outside:
        return _judge_outside(outside, waiting, waits)
    if waiting:
        return _judge_waiting(waiting, [group for group in groups if group not in waiting], several=several)
    return _judge_minority(groups)


def _all_alike(group: Group) -> Odd:
    ranks = group.ranks
    who = f"all {len(ranks)} ranks" if len(ranks) > 1 else name_ranks(ranks)
    sure = len(ranks) > 1 and group.telling.kind != "unknown"
    return build_odd("HANG", (), f"{who} {_does(group)}", "likely" if sure else "unknown", where=group.telling.place)


def _name_unknown(waiting: Group, unknown: Sequence[Group]) -> Odd:
    """Name nobody for being the one whose stack could not be had; that it could not is said."""
    said = [f"{count_ranks(waiting.ranks, '')}{_does(waiting)}"]
    said += [f"of {name_ranks(group.ranks)} only {group.telling.word} is known" for group in unknown[:MOST_NAMED]]
    return build_odd("HANG", (), ", ".join(said), "unknown", where=waiting.telling.place)


def _judge_outside(outside: Sequence[Group], waiting: Sequence[Group], waits: Collection[int]) -> Odd:
    """Judge ranks that are seen to wait for nobody; plain code is weak against what is firm, and against most."""
    firm = [group for group in outside if group.telling.kind in _FIRM]
    vague = [group for group in outside if group not in firm]
    if firm:
        return _name_outside(firm, waiting, waits, beside=vague)
    if _number(vague) <= _number(waiting):
        return _name_outside(vague, waiting, waits)
    said = [f"{count_ranks(waiting[0].ranks, '')}{_does(waiting[0])}"]
    said += [f"{name_ranks(group.ranks)} {_does(group)}" for group in vague[:MOST_NAMED]]
    return build_odd("HANG", (), ", ".join(said), "unknown", where=vague[0].telling.place)


def _name_outside(
    outside: Sequence[Group], waiting: Sequence[Group], waits: Collection[int], *, beside: Sequence[Group] = ()
) -> Odd:
    """Name those that wait for nobody, whom the others wait for."""
    ranks = tuple(sorted(rank for group in outside for rank in group.ranks))
    stopped = outside[0].telling.kind == "stopped"
    firm = stopped or all(group.telling.kind in _FIRM for group in outside)
    alike = stopped or (len({group.telling.word for group in waiting}) == 1 and not waiting[0].telling.point_to_point)
    # What it has called and what is not over it may wait for all the same, once it is back.
    free = stopped or not (set(ranks) & set(waits) or beside)
    sure = firm and alike and free and _number(waiting) >= ENOUGH and _number(waiting) > len(ranks)
    said = [f"{count_ranks(group.ranks, '')}{_does(group)}" for group in waiting[:1]]
    said += [f"{name_ranks(group.ranks)} {_does(group)}" for group in (*outside, *beside)[:MOST_NAMED]]
    where = next((group.telling.place for group in outside if ranks[0] in group.ranks), "")
    return build_odd("HANG", ranks, ", ".join(said), "certain" if sure else "likely", where=where)


def _judge_waiting(waiting: Sequence[Group], unknown: Sequence[Group], *, several: bool) -> Odd:
    """Judge ranks that all wait: for different collectives, or for the same one at different lines.

    In a run of several process groups each may rightly wait in another one.
    """
    if len(waiting) == 1:
        return _name_unknown(waiting[0], unknown)
    plain = [group for group in waiting if group.telling.kind == "collective" and not group.telling.point_to_point]
    by_word: dict[str, list[int]] = {}
    for group in plain:
        by_word.setdefault(group.telling.word, []).extend(group.ranks)
    if len(by_word) > 1:
        return _part_by_word(plain, by_word, several=several or len(plain) < len(waiting))
    largest, *rest = waiting
    mixed = several or len(plain) < len(waiting) or largest.telling.word in _ROOTED
    clear = len(largest.ranks) > sum(len(group.ranks) for group in rest)
    said = [f"{count_ranks(largest.ranks, '')}{_does(largest)}"]
    said += [f"{name_ranks(group.ranks)} {_does(group)}" for group in rest[:MOST_NAMED]]
    if mixed or not clear:
        return build_odd("HANG", (), ", ".join(said), "unknown", where=largest.telling.place)
    ranks = tuple(sorted(rank for group in rest for rank in group.ranks))
    where = next((group.telling.place for group in rest if ranks[0] in group.ranks), "")
    return build_odd("MISMATCH", ranks, ", ".join(said), "likely", where=where)


def _part_by_word(plain: Sequence[Group], by_word: dict[str, list[int]], *, several: bool) -> Odd:
    """Name the few in another collective; stacks tell no process groups, so it is never sure."""
    order = sorted(by_word, key=lambda word: (-len(by_word[word]), min(by_word[word])))
    usual, others = by_word[order[0]], [rank for word in order[1:] for rank in by_word[word]]
    # Two ranks that are alike in being elsewhere look like a process group of their own.
    clear = not several and len(usual) > len(others) and all(len(by_word[word]) < ENOUGH for word in order[1:])
    first = {word: next(group for group in plain if group.telling.word == word) for word in order}
    said = [f"{count_ranks(usual, '')}{_does(first[order[0]], len(usual))}"]
    said += [f"{name_ranks(by_word[word])} {_does(first[word], len(by_word[word]))}" for word in order[1:MOST_NAMED]]
    where, cause = first[order[1]].telling.place, ", ".join(said)
    if clear:
        return build_odd("MISMATCH", tuple(sorted(others)), cause, "likely", where=where)
    return build_odd("HANG", (), cause, "unknown", where=where)


def _judge_minority(groups: Sequence[Group]) -> Odd:
    """Nobody is known to wait for others: the few that are elsewhere than most are odd."""
    largest, *rest = groups
    ranks = tuple(sorted(rank for group in rest for rank in group.ranks))
    said = [f"{count_ranks(largest.ranks, '')}{_does(largest)}"]
    said += [f"{name_ranks(group.ranks)} {_does(group)}" for group in rest[:MOST_NAMED]]
    if len(largest.ranks) <= len(ranks):
        return build_odd("HANG", (), ", ".join(said), "unknown", where=largest.telling.place)
    where = next((group.telling.place for group in rest if ranks[0] in group.ranks), "")
    return build_odd("HANG", ranks, ", ".join(said), "likely", where=where)


def _number(groups: Sequence[Group]) -> int:
    return sum(len(group.ranks) for group in groups)


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


def with_ended(odd: Odd, ended: Sequence[int]) -> Odd:
    """Name ranks that had ended already, where all that are left wait: it is these that they wait for."""
    if odd.ranks or not ended:
        return odd
    has = "has" if len(ended) == 1 else "have"
    return replace(odd, ranks=tuple(ended), cause=f"{odd.cause}; {name_ranks(ended)} {has} ended", confidence="likely")
