from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.diagnosis.hang.stacks import Frame, Stack, merge_stacks, parse_stack
from orchestrator.diagnosis.hang.words import fold_stacks, shorten_files, tell

DATA = Path(__file__).parents[1] / "data" / "stacks"


def read(name: str, rank: int = 0) -> Stack:
    stack = parse_stack((DATA / name).read_text(), rank, 0)
    assert stack is not None
    return stack


def frames_of(*places: str) -> tuple[Frame, ...]:
    """`function file:line`, innermost first."""
    found = []
    for place in places:
        function, _, rest = place.partition(" ")
        file, _, line = rest.partition(":")
        found.append(Frame(function=function, file=file, line=int(line) if line else None))
    return tuple(found)


def test_of_a_py_spy_dump_the_main_thread_counts() -> None:
    stack = read("data_pyspy_rank1.txt")
    assert stack.how == "py-spy"
    assert [frame.place for frame in stack.user_frames] == [
        "/home/user/job/rounds.py:14",
        "/home/user/job/rounds.py:32",
        "/home/user/job/rounds.py:32",
    ]
    assert not any("_feed" in frame.function for frame in stack.frames), "that one is of another thread"


def test_of_native_frames_the_addresses_go_and_the_names_stay() -> None:
    stack = read("lock_native_rank1.txt")
    assert [frame.function for frame in stack.frames] == [
        "PyThread_acquire_lock_timed",
        "lock_PyThread_acquire_lock",
        "hold",
        "borrow",
        "<module>",
    ]
    assert stack.frames[0].native
    assert not stack.frames[2].native
    other = read("lock_native_rank0.txt")
    assert any(frame.function.startswith("c10d::Work::wait") for frame in other.frames)
    assert tell(other).phrase == "all_reduce (/home/user/job/rounds.py:33)"


def test_of_faulthandler_the_thread_that_took_the_signal_counts() -> None:
    stack = read("data_signal_rank1.txt")
    assert stack.how == "signal"
    assert stack.frames[0].function == "select"
    assert tell(stack).place == "/home/user/job/rounds.py:14 in pick"
    twice = parse_stack(
        (DATA / "queue_signal_rank1.txt").read_text() + (DATA / "data_signal_rank1.txt").read_text(), 1, 0
    )
    assert twice is not None
    assert twice.frames == stack.frames, "the last dump of a file counts"


def test_proc_alone_tells_a_state_and_where_the_kernel_waits() -> None:
    stack = read("asleep_proc_rank2.txt")
    assert (stack.how, stack.state, stack.wchan, stack.frames) == ("proc", "S", "hrtimer_nanosleep", ())
    assert tell(stack).kind == "sleep"


@pytest.mark.parametrize("text", ["", "error: no such process", (DATA / "refused_rank0.txt").read_text(), "step 3\n"])
def test_what_is_no_stack_gives_none(text: str) -> None:
    assert parse_stack(text, 0, 0) is None


def test_several_texts_of_a_rank_become_one_stack() -> None:
    (merged,) = merge_stacks([read("asleep_proc_rank2.txt", 2), read("asleep_pyspy_rank2.txt", 2)])
    assert (merged.how, merged.wchan, len(merged.frames)) == ("py-spy", "hrtimer_nanosleep", 4)
    assert tell(merged).phrase == "fetch_remote_shard (hang.py:3), asleep"


@pytest.mark.parametrize(
    ("name", "phrase", "kind"),
    [
        ("lock_pyspy_rank0.txt", "all_reduce (rounds.py:33)", "collective"),
        ("lock_pyspy_rank1.txt", "hold (rounds.py:7)", "code"),
        ("lock_native_rank1.txt", "hold (rounds.py:7), lock acquire", "lock"),
        ("data_pyspy_rank1.txt", "DataLoader.__next__ (rounds.py:14)", "data"),
        ("data_signal_rank1.txt", "DataLoader.__next__ (rounds.py:14)", "data"),
        ("queue_pyspy_rank1.txt", "drain (rounds.py:23), Queue.get", "lock"),
        ("inline_pyspy_rank1.txt", "__getitem__ (rounds.py:19)", "code"),
        ("inline_native_rank1.txt", "__getitem__ (rounds.py:19), time.sleep", "sleep"),
        ("other_signal_rank2.txt", "broadcast (hang.py:9)", "collective"),
    ],
)
def test_what_a_rank_does_in_words(name: str, phrase: str, kind: str) -> None:
    (stack,) = shorten_files([read(name)])
    telling = tell(stack)
    assert (telling.phrase, telling.kind) == (phrase, kind)


@pytest.mark.parametrize(
    ("frames", "state", "phrase", "kind"),
    [
        (["barrier torch/distributed/distributed_c10d.py:1", "main train.py:9"], "S", "barrier (train.py:9)", "collective"),
        (["wait_for_keys /r/library/orchestrator/distributed/waiting.py:5", "barrier /r/library/orchestrator/distributed/waiting.py:9", "main train.py:9"], "S", "barrier (train.py:9)", "collective"),
        (["synchronize torch/cuda/__init__.py:1", "main train.py:9"], "R", "cuda synchronize (train.py:9)", "gpu"),
        (["load torch/serialization.py:1", "main train.py:9"], "S", "main (train.py:9), load of torch/serialization.py", "code"),
        (["read data.py:8", "main train.py:9"], "D", "read (data.py:8), state D", "disk"),
        (["all_reduce torch/distributed/distributed_c10d.py:1", "main train.py:9"], "T", "main (train.py:9), stopped by a signal", "stopped"),
        (["wait threading.py:3", "wait threading.py:4", "run train.py:9"], "S", "run (train.py:9), threading wait", "lock"),
        (["<module> train.py:9"], "S", "its script (train.py:9)", "code"),
    ],
)  # fmt: skip
def test_places_where_ranks_are_found(frames: list[str], state: str, phrase: str, kind: str) -> None:
    telling = tell(Stack(rank=0, node_rank=0, frames=frames_of(*frames), state=state))
    assert (telling.phrase, telling.kind) == (phrase, kind)


def test_equal_stacks_fold_whatever_polls_below_them() -> None:
    polls = ("poll select.py:1", "__next__ torch/utils/data/dataloader.py:5", "train train.py:3")
    waits = ("wait threading.py:7", "__next__ torch/utils/data/dataloader.py:9", "Loop.train /srv/a/train.py:3")
    elsewhere = ("__next__ torch/utils/data/dataloader.py:5", "train train.py:4")
    stacks = [
        Stack(rank=rank, node_rank=0, frames=frames_of(*frames))
        for rank, frames in enumerate((polls, elsewhere, waits))
    ]
    assert [group.ranks for group in fold_stacks(stacks)] == [(0, 2), (1,)]
