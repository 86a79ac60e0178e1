from __future__ import annotations

import base64
import os
import pickle
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks_alone import STUCK, RankRoom, wait_for

from orchestrator.node import flight, processes

RECORDER = """
import sys, types
torch = types.ModuleType("torch")
torch.__version__ = "2.13"
library = types.ModuleType("torch._C._distributed_c10d")
sys.modules.update({"torch": torch, "torch._C._distributed_c10d": library})
"""
"""As much of torch as the hook looks at."""
GLOO = RECORDER + "library._dump_fr_trace_json = lambda: b'{\"entries\":[]}'\n"
PIPE = """
import os, pickle, time
pipe, dump = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "0.pipe", os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + "0"
os.mkfifo(pipe)
handle = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
while True:
    time.sleep(0.1)
    if os.read(handle, 128):
        data = pickle.dumps({"entries": ["by pipe"]}, 2)
        with open(dump, "wb") as file:
            file.write(data[:9]); file.flush(); time.sleep(0.2); file.write(data[9:])
"""
"""What torch does beside NCCL: it looks at its pipe now and then, and writes into its file in pieces."""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RankRoom]:
    with RankRoom(tmp_path) as room:
        yield room


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "LIMIT_S", 6.0)
    monkeypatch.setattr(flight, "HOOK_LESS_S", 2.0)


def take(room: RankRoom, **order: Any) -> tuple[dict[int, tuple[bytes, str]], dict[str, str]]:
    answer = flight.take_dumps(str(room.folder), {"op": "flight", **order})
    return {
        one["rank"]: (zlib.decompress(base64.b64decode(one["data"])), one["how"]) for one in answer["ranks"]
    }, answer["why"]


def prefixes(room: RankRoom) -> dict[str, Any]:
    place = str(room.folder / "diagnosis")
    return {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{place}/nccl_pipe_rank_",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{place}/nccl_trace_rank_",
    }


def wait_ready(room: RankRoom, rank: int = 0) -> None:
    out = room.started[rank].stdout
    assert out is not None
    assert out.readline() == "ready\n"


def test_the_hook_gives_the_recorder_of_every_backend(room: RankRoom) -> None:
    room.start(GLOO + STUCK)
    room.wait_armed()
    room.wait_here()
    assert take(room) == ({0: (b'{"entries":[]}', "hook")}, {})
    assert take(room) == ({0: (b'{"entries":[]}', "hook")}, {})


def test_of_two_recorders_the_fuller_one_counts(room: RankRoom) -> None:
    room.start(GLOO + "library._dump_nccl_trace_json = lambda: b'{\"entries\":[1, 2]}'\n" + STUCK)
    room.wait_armed()
    room.wait_here()
    assert take(room)[0] == {0: (b'{"entries":[1, 2]}', "hook")}


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (STUCK, "LookupError: the program has not imported torch"),
        (RECORDER + STUCK, "LookupError: torch 2.13 has no flight recorder"),
        (RECORDER + "library._dump_fr_trace_json = lambda: 1 / 0\n" + STUCK, "ZeroDivisionError: division by zero"),
    ],
    ids=["no torch", "old torch", "it fails"],
)
def test_why_the_hook_has_none_is_told(room: RankRoom, program: str, why: str) -> None:
    process = room.start(program)
    room.wait_armed()
    room.wait_here()
    assert take(room) == ({}, {"0": why})
    assert process.poll() is None


def test_torchs_pipe_is_asked_and_its_dump_awaited_to_the_end(room: RankRoom) -> None:
    room.start(PIPE, hook=False, **prefixes(room))
    wait_ready(room)
    for _ in range(2):
        ((data, how),) = take(room)[0].values()
        assert (pickle.loads(data), how) == ({"entries": ["by pipe"]}, "pipe")
        os.utime(room.folder / "diagnosis" / "nccl_trace_rank_0", (1, 1))


def test_where_both_answer_the_one_with_the_callers_counts(room: RankRoom) -> None:
    room.start(GLOO + PIPE, **prefixes(room))
    wait_ready(room)
    room.wait_armed()
    assert [how for _, how in take(room)[0].values()] == ["pipe"]


def test_a_pipe_that_nobody_reads_keeps_nobody_waiting(room: RankRoom) -> None:
    room.start(GLOO + STUCK, **prefixes(room))
    room.wait_armed()
    room.wait_here()
    os.mkfifo(room.folder / "diagnosis" / "nccl_pipe_rank_0.pipe")
    began = time.monotonic()
    assert [how for _, how in take(room)[0].values()] == ["hook"]
    assert time.monotonic() - began < 4


def test_what_lies_where_the_pipe_should_be_is_not_written_into(room: RankRoom) -> None:
    room.start(STUCK, hook=False, **prefixes(room))
    path = room.folder / "diagnosis" / "nccl_pipe_rank_0.pipe"
    path.write_text("mine")
    assert take(room) == ({}, {"0": "it has no pipe of NCCL, and the rank hook is not in it"})
    assert path.read_text() == "mine"


def test_a_dump_that_lies_there_is_taken_unless_it_is_of_an_earlier_attempt(room: RankRoom) -> None:
    process = room.start(STUCK, hook=False)
    path = room.folder / "diagnosis" / "nccl_trace_rank_0"
    data = pickle.dumps({"entries": []}, 2)
    path.write_bytes(data)
    assert take(room) == ({0: (data, "file")}, {})
    os.utime(path, (time.time() - 3, time.time() - 3))
    (one,) = flight.take_dumps(str(room.folder), {"op": "flight"})["ranks"]
    assert 3 <= one["age_s"] < 60
    process.kill()
    process.wait()
    assert take(room) == ({0: (data, "file")}, {})
    os.utime(path, (time.time() - 60, time.time() - 60))
    assert take(room) == ({}, {"0": "it has ended and left no dump"})
    path.write_bytes(data[:-1])
    assert take(room)[0] == {}


def test_a_rank_that_puts_its_dump_elsewhere_is_followed_there(room: RankRoom, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    room.start(STUCK, hook=False, TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/mine/fr_")
    (tmp_path / "mine" / "fr_0").write_bytes(b'{"entries":[]}')
    assert take(room)[0] == {0: (b'{"entries":[]}', "file")}


def test_what_is_too_large_is_left_out_with_its_size(room: RankRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "MOST_BYTES", 3 << 20)
    monkeypatch.setattr(flight, "MOST_IN_ALL", 5 << 20)
    for rank, mib in enumerate((4, 2, 2, 2)):
        room.start(STUCK, rank=rank, hook=False)
        path = room.folder / "diagnosis" / f"nccl_trace_rank_{rank}"
        path.write_bytes(b"{" + os.urandom((mib << 20) - 2) + b"}")
    found, why = take(room)
    assert sorted(found) == [1, 2]
    assert why == {rank: f"its dump has {mib} MiB, more than is sent" for rank, mib in (("0", 4), ("3", 2))}


def test_what_repeats_itself_is_sent_packed(room: RankRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "MOST_IN_ALL", 1 << 20)
    room.start(STUCK, hook=False)
    data = b"{" + b" " * (8 << 20) + b"}"
    (room.folder / "diagnosis" / "nccl_trace_rank_0").write_bytes(data)
    assert take(room) == ({0: (data, "file")}, {})


def test_only_the_ranks_that_are_asked_for_are_disturbed(room: RankRoom) -> None:
    for rank in range(2):
        room.start(GLOO + STUCK, rank=rank)
        room.wait_armed(rank)
        room.wait_here(rank)
    assert sorted(take(room, ranks=[1])[0]) == [1]
    assert not (room.folder / "diagnosis" / "stacks" / "rank_0.flight.json").exists()


def test_a_rank_that_lets_no_other_thread_run_costs_the_time_and_no_more(
    room: RankRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight, "LIMIT_S", 2.5)
    process = room.start(GLOO + STUCK)
    room.wait_armed()
    room.wait_here()
    os.kill(process.pid, 19)
    wait_for(lambda: (found := processes.read_process(process.pid)) is not None and found.state == "T")
    assert take(room) == ({}, {"0": "its rank hook gave no dump in time: what it is in lets no other thread run"})


def test_what_a_rank_left_when_its_time_was_up_is_taken_and_nobody_is_asked(room: RankRoom) -> None:
    program, dump = "import time\nprint('ready', flush=True)\ntime.sleep(60)", pickle.dumps({"entries": []}, 2)
    for rank in (0, 1):
        room.start(program, rank=rank, hook=False, **prefixes(room))
        wait_ready(room, rank)
    (room.folder / "diagnosis").mkdir(exist_ok=True)
    (room.folder / "diagnosis" / "nccl_trace_rank_1").write_bytes(dump)
    begin = time.monotonic()
    assert take(room, left=True) == ({1: (dump, "file")}, {"0": "it left no dump"})
    assert time.monotonic() - begin < 3
