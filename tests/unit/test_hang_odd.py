from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_flight import call, dump_of
from test_stacks import frames_of

from orchestrator.diagnosis.case import Odd
from orchestrator.diagnosis.hang.flight import Dump, parse_dump
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
LOADER = ("__next__ torch/utils/data/dataloader.py:1", "train train.py:30")
BACKWARD = ("_engine_run_backward torch/autograd/graph.py:1", "train train.py:50")
ASKS = ("train train.py:60",)
"""loss.item(): it waits for the GPU, and no frame shows it."""


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
    assert (odd.family, odd.ranks, odd.confidence) == ("MISMATCH", (2,), "likely")
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
    dumps = [dump_of(rank, call(812, retired=True), *([call(813)] if rank != 1 else [])) for rank in range(4)]
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
        ([REDUCE, REDUCE, LOADER, REDUCE], "", "HANG", (2,), "certain"),
        # A whole node outside.
        ([REDUCE, REDUCE, LOADER, LOADER, REDUCE], "", "HANG", (2, 3), "certain"),
        ([REDUCE, REDUCE, FETCH, FETCH, REDUCE], "", "HANG", (2, 3), "likely"),
        ([REDUCE, REDUCE, LOADER, LOADER], "", "HANG", (2, 3), "likely"),
        # Most are outside: it is these that the one waits for, unless they may all wait for a GPU.
        ([REDUCE, LOADER, LOADER, LOADER], "", "HANG", (1, 2, 3), "likely"),
        ([REDUCE, ASKS, ASKS, ASKS], "", "HANG", (), "unknown"),
        # Plain code may ask the GPU for a figure.
        ([ASKS, BACKWARD, BACKWARD, BACKWARD], "", "HANG", (0,), "likely"),
        ([REDUCE, REDUCE, ASKS, LOADER], "", "HANG", (3,), "likely"),
        # The last stage of a pipeline loads data by right.
        ([RECEIVE, RECEIVE, RECEIVE, LOADER], "", "HANG", (3,), "likely"),
        # Another collective, and the same one at another line; two that are alike may be a group of their own.
        ([REDUCE, GATHER, REDUCE], "", "MISMATCH", (1,), "likely"),
        ([REDUCE, GATHER, GATHER, REDUCE], "", "HANG", (), "unknown"),
        ([REDUCE, GATHER, GATHER, REDUCE, REDUCE], "", "HANG", (), "unknown"),
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


def ask_both(frames: Sequence[Sequence[str]], dumps: Sequence[Dump], states: str = "") -> Odd:
    stacks = [
        Stack(rank=rank, node_rank=0, frames=frames_of(*one), state=states[rank : rank + 1])
        for rank, one in enumerate(frames)
    ]
    odd = find_odd(stacks, dumps)
    assert odd is not None
    return odd


def test_who_was_overtaken_waits_in_the_same() -> None:
    behind = dump_of(0, call(8, retired=True), call(9))
    ahead = [dump_of(rank, call(8, retired=True), call(9), call(10)) for rank in (1, 2, 3)]
    odd = ask_both([ASKS, REDUCE, REDUCE, REDUCE], [behind, *ahead])
    assert (odd.ranks, odd.confidence, odd.cause) == ((), "likely", "all 4 ranks wait in all_reduce (sequence 9)")
    other = dump_of(3, call(8, retired=True), call(9), call(10, "nccl:broadcast"))
    odd = ask_both([ASKS, REDUCE, REDUCE, REDUCE], [behind, *ahead[:2], other])
    assert odd.ranks == (), "nobody has got to 10"
    never = dump_of(0, call(8, retired=True))
    odd = ask_both([ASKS, REDUCE, REDUCE, REDUCE], [never, *ahead])
    assert (odd.ranks, odd.confidence) == ((0,), "certain")
    assert odd.cause.startswith("3 ranks wait in all_reduce (train.py:41, sequence 9); rank 0 never came")


def test_where_all_wait_in_one_collective_no_stack_names_anybody_but_one_that_is_stopped() -> None:
    dumps = [dump_of(rank, call(9)) for rank in range(4)]
    for lone in (ASKS, LOADER, FETCH):
        odd = ask_both([lone, BACKWARD, BACKWARD, BACKWARD], dumps)
        assert (odd.ranks, odd.rule) == ((), "flight recorder")
    odd = ask_both([REDUCE, REDUCE, REDUCE, REDUCE], dumps, "SSTS")
    assert (odd.ranks, odd.confidence) == ((2,), "certain")


def test_of_some_recorders_who_waits_is_no_stranger() -> None:
    odd = ask_both([ASKS, BACKWARD, BACKWARD, BACKWARD], [dump_of(0, call(9))])
    assert (odd.ranks, odd.confidence) == ((), "unknown")
    assert odd.cause == "3 ranks wait in backward (train.py:50), rank 0 waits in train (train.py:60)"
    odd = ask_both([LOADER, BACKWARD, BACKWARD, BACKWARD], [dump_of(0, call(9))])
    assert (odd.ranks, odd.confidence) == ((0,), "likely"), "it has called what is not over"


def test_one_that_is_stuck_in_what_the_others_have_behind_them() -> None:
    ahead = [dump_of(rank, call(8, retired=True), call(9)) for rank in range(3)]
    odd = ask_both([REDUCE, REDUCE, REDUCE, LATER], [*ahead, dump_of(3, call(8))])
    assert (odd.family, odd.ranks, odd.confidence) == ("HANG", (3,), "likely")
    assert odd.cause == (
        "3 ranks wait in all_reduce (train.py:41, sequence 9); rank 3 still waits in all_reduce (sequence 8)"
    )
    most = [dump_of(rank, call(8)) for rank in (1, 2, 3)]
    assert ask_both([REDUCE, LATER, LATER, LATER], [ahead[0], *most]).confidence != "certain"


def test_in_several_process_groups_a_few_in_another_collective_are_no_strangers() -> None:
    groups = [{"process_group": [name, name]} for name in ("tp", "dp")]
    dumps = [dump_of(rank, call(5) | groups[rank == 3]) for rank in range(4)]
    odd = ask_both([REDUCE, REDUCE, REDUCE, GATHER], dumps)
    assert (odd.family, odd.ranks, odd.confidence) == ("HANG", (), "unknown")
    assert ask_both([REDUCE, REDUCE, REDUCE, LATER], dumps).ranks == ()


def test_who_waits_in_another_group_is_named_only_where_all_of_that_group_are_known() -> None:
    config = {"1": {"desc": "pair", "ranks": "[0, 4]"}, "0": {"desc": "default_pg", "ranks": "[0, 1, 2, 3, 4]"}}
    pair = {"process_group": ["1", "pair"]}
    dumps = [
        dump_of(0, call(8, retired=True), call(3) | pair, pg_config=config),
        *(dump_of(rank, call(8, retired=True), call(9), pg_config=config) for rank in (1, 2, 3)),
    ]
    odd = ask_both([], dumps)
    assert (odd.ranks, odd.confidence) == ((), "unknown"), "it waits for rank 4, of which nothing is known"
    odd = ask_both([], [*dumps, dump_of(4, call(8, retired=True), pg_config=config)])
    assert (odd.ranks, odd.confidence) == ((4,), "certain")


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
