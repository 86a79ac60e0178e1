"""Says in few words what a stack means: what the rank waits in or works at, and which line of its own code called that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os.path import commonpath
from typing import Literal

from orchestrator.diagnosis.hang.stacks import Frame, Stack
from orchestrator.light_dataclass import dataclass

Kind = Literal["collective", "gpu", "data", "lock", "sleep", "disk", "stopped", "code", "unknown"]

WAITING: tuple[Kind, ...] = ("collective", "gpu")
"""Who does this waits for other ranks, or for a device that does."""
_COLLECTIVES = frozenset(
    {
        *("all_reduce", "all_reduce_coalesced", "broadcast", "broadcast_object_list", "reduce", "barrier"),
        *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_coalesced", "gather"),
        *("gather_object", "scatter", "scatter_object_list", "reduce_scatter", "reduce_scatter_tensor"),
        *("all_to_all", "all_to_all_single", "send", "recv", "send_object_list", "recv_object_list"),
        *("monitored_barrier", "batch_isend_irecv", "init_process_group", "new_group", "split_group"),
        *("destroy_process_group", "_store_based_barrier", "wait_tensor", "_broadcast_coalesced"),
        *("_sync_module_states", "_verify_param_shape_across_processes", "_sync_buffers", "synchronize_staging"),
    }
)
_POINT_TO_POINT = frozenset({"send", "recv", "send_object_list", "recv_object_list", "batch_isend_irecv"})
_LIBRARY_WORDS: tuple[tuple[str, frozenset[str], str, Kind], ...] = (
    ("torch/utils/data/dataloader.py", frozenset({"__next__"}), "DataLoader.__next__", "data"),
    ("torch/utils/data/dataloader.py", frozenset({"__iter__", "__init__"}), "DataLoader.__iter__", "data"),
    ("torch/utils/data/dataloader.py", frozenset({"_shutdown_workers", "__del__"}), "DataLoader shutdown", "data"),
    (
        "orchestrator/distributed/waiting.py",
        frozenset({"barrier", "main_process_first", "node_main_first"}),
        "{function}",
        "collective",
    ),
    ("orchestrator/distributed/calls.py", frozenset({"compare"}), "a comparison of calls (debug)", "collective"),
    ("torch/cuda/", frozenset({"synchronize", "wait", "wait_stream"}), "cuda synchronize", "gpu"),
    ("torch/autograd/", frozenset({"_engine_run_backward", "backward"}), "backward", "gpu"),
    ("threading.py", frozenset({"acquire", "__enter__"}), "lock acquire", "lock"),
    ("threading.py", frozenset({"wait", "wait_for"}), "threading wait", "lock"),
    ("threading.py", frozenset({"join", "_wait_for_tstate_lock"}), "Thread.join", "lock"),
    ("multiprocessing/synchronize.py", frozenset({"acquire", "__enter__", "wait"}), "lock acquire", "lock"),
    ("filelock/", frozenset({"acquire", "__enter__"}), "file lock acquire", "lock"),
    ("queue.py", frozenset({"get", "put", "join"}), "Queue.{function}", "lock"),
    ("multiprocessing/queues.py", frozenset({"get", "put"}), "Queue.{function}", "lock"),
    ("concurrent/futures/", frozenset({"result", "wait", "shutdown"}), "futures {function}", "lock"),
    ("subprocess.py", frozenset({"wait", "communicate", "run", "call"}), "subprocess.{function}", "code"),
)
"""(part of the file, functions, word, kind): the outermost that fits is what the rank's own code asked for."""
_NATIVE_WORDS: tuple[tuple[tuple[str, ...], str, Kind], ...] = (
    (("time_sleep", "pysleep", "clock_nanosleep", "nanosleep"), "time.sleep", "sleep"),
    (("lock_PyThread_acquire_lock", "PyThread_acquire_lock", "rlock_acquire", "acquire_timed"), "lock acquire", "lock"),
    (("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"), "cuda synchronize", "gpu"),
    (("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize"), "hip synchronize", "gpu"),
    (("c10d::Work::wait", "c10d::ProcessGroup"), "Work.wait", "collective"),
    (("c10d::TCPStore",), "the store", "collective"),
    (("flock", "fcntl_lockf"), "file lock acquire", "lock"),
)
_ASIDES: dict[Kind, str] = {"sleep": "asleep", "disk": "state D"}
_SLEEPS = ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep")


@dataclass(frozen=True, kw_only=True)
class Telling:
    """What one rank does, in words."""

    word: str
    kind: Kind
    caller: Frame | None = None
    """The innermost frame of the rank's own code."""

    @property
    def place(self) -> str:
        """Where its own code is, file:line in function; empty where no frame tells."""
        return f"{self.caller.place} in {self.caller.function}" if self.caller is not None else ""

    @property
    def phrase(self) -> str:
        """What it does and where: "all_reduce (train.py:41)", "fetch (data.py:88), time.sleep"."""
        return self.render()

    def render(self, more: str = "") -> str:
        """Say the same with something more inside the brackets."""
        own = _own_word(self.caller)
        if self.caller is None or self.kind in ("collective", "gpu", "data"):
            place = ", ".join(filter(None, (self.caller.place if self.caller is not None else "", more)))
            return f"{self.word} ({place})" if place else self.word
        aside = _ASIDES.get(self.kind, "") if self.word == own else self.word
        place = ", ".join(filter(None, (self.caller.place, more)))
        return f"{own} ({place})" + (f", {aside}" if aside else "")

    @property
    def point_to_point(self) -> bool:
        """It waits for one other rank, and who that is differs from rank to rank."""
        return self.word in _POINT_TO_POINT


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks that do the same."""

    telling: Telling
    stacks: tuple[Stack, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who they are."""
        return tuple(stack.rank for stack in self.stacks)


def tell(stack: Stack) -> Telling:
    """Say what a rank does."""
    caller = next(iter(stack.user_frames), None)
    if stack.state == "T":
        return Telling(word="stopped by a signal", kind="stopped", caller=caller)
    if not stack.frames:
        return _tell_by_kernel(stack)
    inner = stack.frames[: stack.frames.index(caller)] if caller is not None else stack.frames
    told = _tell_by_library(inner) or _tell_by_native(inner)
    if told is not None:
        return replace(told, caller=caller)
    python = [frame for frame in inner if not frame.native]
    if python:
        outer = python[-1]
        return Telling(word=f"{_plain(outer.function)} of {_short_library(outer.file)}", kind="code", caller=caller)
    if stack.state == "D":
        return Telling(word=_own_word(caller), kind="disk", caller=caller)
    asleep = stack.wchan in _SLEEPS
    return Telling(word=_own_word(caller), kind="sleep" if asleep else "code", caller=caller)


def fold_stacks(stacks: Sequence[Stack]) -> tuple[Group, ...]:
    """Put ranks together that do the same, the largest group first."""
    found: dict[object, list[Stack]] = {}
    tellings: dict[object, Telling] = {}
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        telling = tell(stack)
        key = _key(stack, telling)
        tellings.setdefault(key, telling)
        found.setdefault(key, []).append(stack)
    groups = [Group(telling=tellings[key], stacks=tuple(members)) for key, members in found.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.stacks), group.ranks)))


def _key(stack: Stack, telling: Telling) -> object:
    # Where libraries poll, their frames differ from look to look: what was asked of them does not.
    own = tuple((frame.file.rpartition("/")[2], _plain(frame.function), frame.line) for frame in stack.user_frames)
    return telling.word, telling.kind, own


def find_moved(before: Sequence[Stack], after: Sequence[Stack]) -> tuple[int, ...]:
    """Name the ranks that do something else than at an earlier look."""
    known = {stack.rank: _key(stack, tell(stack)) for stack in before}
    return tuple(
        stack.rank for stack in after if known.get(stack.rank, _key(stack, tell(stack))) != _key(stack, tell(stack))
    )


def shorten_files(stacks: Sequence[Stack]) -> tuple[Stack, ...]:
    """Write the files of the ranks' own code without the folder that they share on their node."""
    shared: dict[int, str] = {}
    for node_rank in {stack.node_rank for stack in stacks}:
        own = [stack.user_frames[0].file for stack in stacks if stack.node_rank == node_rank and stack.user_frames]
        folders = {file.rpartition("/")[0] for file in own if file.startswith("/")}
        shared[node_rank] = commonpath(folders) if folders else ""
    return tuple(_without(stack, shared[stack.node_rank]) for stack in stacks)


def _without(stack: Stack, folder: str) -> Stack:
    if len(folder) <= 1:
        return stack
    frames = tuple(replace(frame, file=frame.file.removeprefix(f"{folder}/")) for frame in stack.frames)
    # Libraries keep their names: what makes them known may be the very folder.
    kept = tuple(new if old.user else old for old, new in zip(stack.frames, frames, strict=True))
    return replace(stack, frames=kept)


def _tell_by_library(inner: Sequence[Frame]) -> Telling | None:
    """Find what the rank's own code asked a library for: the outermost call that tells something."""
    for frame in reversed(inner):
        if frame.native:
            continue
        function = _plain(frame.function)
        if "torch/distributed/" in frame.file and function in _COLLECTIVES:
            return Telling(word=function.removeprefix("_"), kind="collective")
        for part, functions, word, kind in _LIBRARY_WORDS:
            if function in functions and _lies_in(frame.file, part):
                return Telling(word=word.format(function=function), kind=kind)
    return None


def _lies_in(file: str, part: str) -> bool:
    return f"/{part}" in f"/{file}" if part.endswith("/") else f"/{file}".endswith(f"/{part}")


def _tell_by_native(inner: Sequence[Frame]) -> Telling | None:
    """Find it in native frames, outermost first: between them and the rank's own code no Python tells anything."""
    for frame in reversed(inner):
        if not frame.native:
            return None
        for names, word, kind in _NATIVE_WORDS:
            if frame.function.startswith(names):
                return Telling(word=word, kind=kind)
    return None


def _tell_by_kernel(stack: Stack) -> Telling:
    word = f"{stack.wchan} of the kernel" if stack.wchan else f"state {stack.state or '?'}"
    if stack.state == "D":
        return Telling(word=f"state D, {word}" if stack.wchan else word, kind="disk")
    return Telling(word=word, kind="sleep" if stack.wchan in _SLEEPS else "unknown")


def _own_word(caller: Frame | None) -> str:
    if caller is None:
        return "an unknown place"
    return "its script" if caller.function == "<module>" else _plain(caller.function)


def _plain(function: str) -> str:
    return function.rpartition(".")[2]


def _short_library(file: str) -> str:
    for mark in ("site-packages/", "dist-packages/"):
        if mark in file:
            return file.rpartition(mark)[2]
    return "/".join(file.split("/")[-2:]) if file.startswith("/") else file
