from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_flight import call, dump_of
from test_stacks import frames_of

from orchestrator.diagnosis.case import Odd
from orchestrator.diagnosis.hang.flight import parse_dump
from orchestrator.diagnosis.hang.naming import name_ranks
from orchestrator.diagnosis.hang.odd import find_odd, with_ended
from orchestrator.diagnosis.hang.stacks import Stack, parse_stack

DATA = Path(__file__).parents[1] / "data"

REDUCE = ("all_reduce torch/distributed/distributed_c10d.py:3252", "train train.py:41")
GATHER = ("all_gather torch/distributed/distributed_c10d.py:1", "train train.py:60")
LATER = ("all_reduce torch/distributed/distributed_c10d.py:3252", "train train.py:48")
SEND = ("send torch/distributed/distributed_c10d.py:3", "stage pipe.py:5")
RECEIVE = ("recv torch/distributed/distributed_c10d.py:4", "stage pipe.py:9")
FETCH = ("fetch data.py:88", "train train.py:30")


def read_stacks(pattern: str) -> list[Stack]:
    found = []
    for path in sorted((DATA / "stacks").glob(pattern)):
        number = re.search(r"rank(\d+)", path.name)
        assert number is not None
        stack = parse_stack(path.read_text(), int(number[1]), 0)
        found += [stack] if stack is not None else []
    return found


def ask(pattern: str) -> Odd:
    dumps = [parse_dump(path.read_bytes(), rank) for rank, path in enumerate(sorted((DATA / "flight").glob(pattern)))]
    odd = find_odd([], [dump for dump in dumps if dump is not None])
    assert odd is not None
    return odd


def judge(*frames: Sequence[str], states: str = "") -> Odd:
    odd = find_odd(
        [
            Stack(rank=rank, node_rank=rank // 2, frames=frames_of(*one), state=states[rank : rank + 1])
            for rank, one in enumerate(frames)
        ],
        [],
    )
    assert odd is not None
    return odd


def test_the_real_ones() -> None:
    odd = find_odd(read_stacks("asleep_*"), [])
    assert odd is not None
    assert (odd.family, odd.ranks, odd.rule, odd.confidence) == ("HANG", (2,), "stacks", "certain")
    assert odd.cause == "3 ranks wait in all_reduce (hang.py:11), rank 2 is in fetch_remote_shard (hang.py:3), asleep"
    assert odd.where == "hang.py:3 in fetch_remote_shard"
    odd = find_odd(read_stacks("other_signal_*"), [])
    assert odd is not None
    assert (odd.family, odd.ranks, odd.confidence) == ("MISMATCH", (2,), "certain")
    assert odd.cause == "3 ranks wait in all_reduce (hang.py:11), rank 2 waits in broadcast (hang.py:9)"
    odd = find_odd(read_stacks("asleep_proc_*"), [])
    assert odd is not None
    assert (odd.ranks, odd.confidence) == ((2,), "likely")
    odd = ask("asleep_*.json")
    assert (odd.family, odd.ranks, odd.rule, odd.confidence) == ("HANG", (2,), "flight recorder", "certain")
    odd = ask("other_*.json")
    assert (odd.family, odd.ranks, odd.rule) == ("MISMATCH", (2,), "flight recorder")
    assert odd.cause == "3 ranks called all_reduce of [256] Float (sequence 4), rank 2 called broadcast of [256] Float"


def test_the_recorder_tells_where_they_part_and_the_stack_what_the_rank_does() -> None:
    dumps = [dump_of(rank, call(812), *([call(813)] if rank != 1 else [])) for rank in range(4)]
    stacks = [Stack(rank=rank, node_rank=0, frames=frames_of(*(FETCH if rank == 1 else REDUCE))) for rank in range(4)]
    odd = find_odd(stacks, dumps)
    assert odd is not None
    assert (odd.ranks, odd.rule, odd.where) == ((1,), "flight recorder", "data.py:88 in fetch")
    assert (
        odd.cause
        == "3 ranks wait in all_reduce (train.py:41, sequence 813); rank 1 never came: is in fetch (data.py:88)"
    )


@pytest.mark.parametrize(
    ("frames", "states", "family", "ranks", "confidence"),
    [
        # One that is outside of the collective in which all others wait.
        ([REDUCE, REDUCE, FETCH, REDUCE], "SSDS", "HANG", (2,), "certain"),
        ([REDUCE, FETCH], "", "HANG", (1,), "likely"),
        # A whole node outside.
        ([REDUCE, REDUCE, FETCH, FETCH, REDUCE], "", "HANG", (2, 3), "certain"),
        # Most are outside: it is these that the one waits for.
        ([REDUCE, FETCH, FETCH, FETCH], "", "HANG", (1, 2, 3), "likely"),
        # Another collective, and the same one at another line.
        ([REDUCE, GATHER, REDUCE], "", "MISMATCH", (1,), "certain"),
        ([REDUCE, GATHER, GATHER, REDUCE], "", "MISMATCH", (), "likely"),
        ([REDUCE, REDUCE, LATER], "", "MISMATCH", (2,), "likely"),
        # All alike: nobody is odd.
        ([REDUCE, REDUCE, REDUCE], "", "HANG", (), "likely"),
        # Neighbours in a pipeline do different things by right.
        ([SEND, RECEIVE, RECEIVE], "", "HANG", (), "unknown"),
        # Nobody is seen to wait for another.
        ([FETCH, FETCH, FETCH, ("save ckpt.py:5",)], "", "HANG", (3,), "likely"),
        ([FETCH, ("save ckpt.py:5",)], "", "HANG", (), "unknown"),
        # Somebody stopped it, wherever it was.
        ([REDUCE, REDUCE, REDUCE], "STS", "HANG", (1,), "certain"),
    ],
)
def test_who_is_odd(
    frames: list[Sequence[str]], states: str, family: str, ranks: tuple[int, ...], confidence: str
) -> None:
    odd = judge(*frames, states=states)
    assert (odd.family, odd.ranks, odd.confidence) == (family, ranks, confidence), odd


def test_one_whose_stack_could_not_be_had_is_not_odd_for_that() -> None:
    stacks = [Stack(rank=rank, node_rank=0, frames=frames_of(*REDUCE)) for rank in range(3)]
    odd = find_odd([*stacks, Stack(rank=3, node_rank=0, state="S", wchan="futex_do_wait")], [])
    assert odd is not None
    assert (odd.family, odd.ranks, odd.confidence) == ("HANG", (), "unknown")
    assert odd.cause == "3 ranks wait in all_reduce (train.py:41), of rank 3 only futex_do_wait of the kernel is known"
    odd = find_odd([*stacks, Stack(rank=3, node_rank=0, state="D", wchan="nfs_wait")], [])
    assert odd is not None
    assert (odd.ranks, odd.confidence) == ((3,), "certain")


def test_what_is_said() -> None:
    odd = judge(REDUCE, REDUCE, FETCH, REDUCE, states="SSDS")
    assert odd.cause == "3 ranks wait in all_reduce (train.py:41), rank 2 is in fetch (data.py:88), state D"
    assert judge(REDUCE, REDUCE).cause == "all 2 ranks wait in all_reduce (train.py:41)"
    assert judge(REDUCE, REDUCE, LATER).cause == (
        "2 ranks wait in all_reduce (train.py:41), rank 2 waits in all_reduce (train.py:48)"
    )
    assert name_ranks(range(3, 9)) == "ranks 3-8"
    assert name_ranks([1, 3, 5, 7, 9]) == "5 ranks"


def test_one_that_is_gone_is_whom_the_others_wait_for() -> None:
    odd = with_ended(judge(REDUCE, REDUCE, REDUCE), [3])
    assert (odd.ranks, odd.cause) == ((3,), "all 3 ranks wait in all_reduce (train.py:41); rank 3 has ended")
    named = judge(REDUCE, REDUCE, FETCH)
    assert with_ended(named, [3]) == named


def test_nothing_to_compare_names_nothing() -> None:
    assert find_odd([], []) is None
