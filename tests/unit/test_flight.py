from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.diagnosis.hang.flight import Dump, parse_dump
from orchestrator.diagnosis.hang.parting import find_common, find_parting

DATA = Path(__file__).parents[1] / "data" / "flight"


def read(pattern: str) -> list[Dump]:
    found = []
    for rank, path in enumerate(sorted(DATA.glob(pattern))):
        dump = parse_dump(path.read_bytes(), rank)
        assert dump is not None
        found.append(dump)
    return found


def call(sequence: int, operation: str = "nccl:all_reduce", **more: Any) -> dict[str, Any]:
    entry = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": sequence,
        "profiling_name": operation,
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
    }
    return entry | more


def dump_of(rank: int, *entries: Mapping[str, Any], **more: Any) -> Dump:
    dump = parse_dump(json.dumps({"entries": entries, **more}).encode(), rank)
    assert dump is not None
    return dump


def test_who_never_came_is_found_in_json_and_in_a_pickle() -> None:
    parting = find_parting(read("asleep_rank*.json"))
    assert parting is not None
    assert (parting.how, parting.sequence, parting.ranks, parting.others) == ("absent", 4, (2,), (0, 1, 3))
    parting = find_parting(read("groups_rank*.pickle"))
    assert parting is not None
    assert (parting.how, parting.group, parting.sequence, parting.ranks) == ("absent", "default_pg", 2, (2,))
    assert parting.expected is not None
    assert parting.expected.caller is not None
    assert parting.expected.caller.place == "/srv/job/groups.py:19"
    assert parting.called is None, "it waits in no other collective"


def test_who_called_something_else_is_found() -> None:
    parting = find_parting(read("other_rank*.json"))
    assert parting is not None
    assert (parting.how, parting.sequence, parting.ranks) == ("operation", 4, (2,))
    assert parting.expected is not None
    assert parting.called is not None
    assert (parting.expected.words, parting.called.words) == ("all_reduce of [256] Float", "broadcast of [256] Float")


@pytest.mark.parametrize(
    ("odd", "how"),
    [
        ({"input_sizes": [[9]]}, "sizes"),
        ({"input_dtypes": ["Half"]}, "dtype"),
        ({"profiling_name": "nccl:_all_gather_base"}, "operation"),
    ],
)
def test_another_shape_dtype_or_operation(odd: dict[str, Any], how: str) -> None:
    dumps = [dump_of(rank, call(1, retired=True), call(2)) for rank in range(3)]
    dumps.append(dump_of(3, call(1, retired=True), call(2) | odd))
    parting = find_parting(dumps)
    assert parting is not None
    assert (parting.how, parting.sequence, parting.ranks) == (how, 2, (3,))


def test_what_may_differ_is_no_difference() -> None:
    uneven = [dump_of(rank, call(1, "nccl:all_to_all", input_sizes=[[rank]])) for rank in range(3)]
    assert find_parting(uneven) is None
    common = find_common(uneven)
    assert common is not None
    assert common.operation == "all_to_all"
    over = [dump_of(rank, call(1, input_sizes=[[rank]], retired=True), call(2)) for rank in range(3)]
    assert find_parting(over) is None, "what all have behind them was well"


def test_two_against_two_names_nobody() -> None:
    dumps = [dump_of(rank, call(1, "gloo:broadcast" if rank < 2 else "gloo:all_reduce")) for rank in range(4)]
    parting = find_parting(dumps)
    assert parting is not None
    assert (parting.how, parting.ranks) == ("operation", ())


def test_of_two_groups_the_one_counts_whose_missing_rank_waits_for_nobody() -> None:
    inner = {"process_group": ["1", "tensor"]}
    config = {"1": {"name": "1", "desc": "tensor", "ranks": "[0, 1]"}, "0": {"desc": "default_pg", "ranks": [0, 1, 2]}}
    dumps = [
        dump_of(0, call(1, retired=True), call(1) | inner, pg_config=config),  # waits for 1, and 2 waits for it
        dump_of(1, call(1, retired=True), pg_config=config),
        dump_of(2, call(1, retired=True), call(2), pg_config=config),
    ]
    parting = find_parting(dumps)
    assert parting is not None
    assert (parting.how, parting.group, parting.ranks, parting.others) == ("absent", "tensor", (1,), (0,))


def test_a_rank_that_has_called_nothing_yet_is_missed_as_well() -> None:
    dumps = [dump_of(0, call(1)), dump_of(1, call(1)), dump_of(2)]
    parting = find_parting(dumps)
    assert parting is not None
    assert (parting.how, parting.sequence, parting.ranks) == ("absent", 1, (2,))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\x80\x02garbage", b"hello", b'{"a": 1}', b'{"entries": 3}'])
def test_what_is_no_dump_gives_none(data: bytes) -> None:
    assert parse_dump(data, 0) is None


def test_a_pickle_that_names_a_class_is_not_read(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "touched",))

    assert parse_dump(pickle.dumps({"entries": [Evil()]}), 0) is None
    assert not (tmp_path / "touched").exists()


def test_a_torn_entry_costs_only_itself() -> None:
    dump = dump_of(0, call(1), {"process_group": []}, {"state": "x"}, call(2, input_sizes=None))
    assert [entry.sequence for entry in dump.entries] == [1, 2]
