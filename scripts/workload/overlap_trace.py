"""What a trace says of one rank's steps: when it computed, when it communicated, and how much of both at once.

On a GPU every kernel counts: those of NCCL and RCCL (and of symmetric memory) as communication, the others as compute; copies and memory sets are
neither. On a CPU the collectives that gloo, MPI or UCC run in their own threads are communication; compute is the time
inside of tensor operators (aten:: and the like), less the collectives that a thread runs or waits for inside of one.
Both include the waiting for a slower peer: that is what a trace shows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workload.overlap_intervals import Gathered, cut, intersect, length, subtract, unite
from workload.overlap_stream import TraceError, stream_trace

if TYPE_CHECKING:
    from pathlib import Path

STEP = re.compile(r"(training_step|ProfilerStep)#(\d+)")
OWN_STEP, OTHERS_STEP = "training_step", "ProfilerStep"
"""Ours begins and ends with the step; torch's own goes on to the next one, evaluation and checkpoint included."""
GPU_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|one_shot_all_reduce|two_shot_all_reduce|multimem_(all|one|two|reduce)", re.IGNORECASE
)
CPU_COMMUNICATION = re.compile(r"(gloo|mpi|ucc):")
CPU_COLLECTIVE = re.compile(r"_?c10d(_functional)?::|record_param_comms")
# autograd's and DDP's own entries only hold operators together; whoever waits in a hook waits inside of one of them.
CPU_COMPUTE = re.compile(r"(?!autograd::|torch::|_?c10d)[A-Za-z_]\w*::|## Call CompiledFxGraph|cpp_fused")
RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)")

Numbered = dict[tuple[str, int], list[tuple[int, int]]]


@dataclass(frozen=True)
class Overlap:
    """One or more steps of a rank; all times in nanoseconds."""

    steps: int = 0
    duration: int = 0
    compute: int = 0
    communication: int = 0
    hidden: int = 0
    """Communication while the rank computed as well."""

    @property
    def exposed(self) -> int:
        """Communication while nothing was computed."""
        return self.communication - self.hidden

    @property
    def share(self) -> float | None:
        """The hidden share of the communication, 0 to 1; None without any."""
        return self.hidden / self.communication if self.communication else None

    def __add__(self, other: Overlap) -> Overlap:
        return Overlap(
            self.steps + other.steps,
            self.duration + other.duration,
            self.compute + other.compute,
            self.communication + other.communication,
            self.hidden + other.hidden,
        )


@dataclass(frozen=True)
class Trace:
    """One trace file of one rank."""

    path: Path
    rank: int | None
    host: str
    device: str
    """gpu where any kernel ran, else cpu."""
    steps: dict[int, Overlap]
    """By the step's number; empty where none is marked."""
    whole: Overlap
    """All steps together, or the whole trace where none is marked."""


@dataclass
class _Events:
    steps: Numbered = field(default_factory=dict)
    gpu_steps: Numbered = field(default_factory=dict)
    kernels: Gathered = field(default_factory=Gathered)
    gpu_communication: Gathered = field(default_factory=Gathered)
    cpu_communication: Gathered = field(default_factory=Gathered)
    operators: dict[Any, Gathered] = field(default_factory=dict)
    """By thread, as the next."""
    collectives: dict[Any, Gathered] = field(default_factory=dict)
    on_gpu: bool = False


def read_trace(path: Path) -> Trace:
    """Read and measure a trace, plain or gzipped; TraceError where it is none or is cut off."""
    about: dict[str, Any] = {}
    events = _Events()
    take = {
        "kernel": _take_kernel,
        "cpu_op": _take_operator,
        "user_annotation": _take_annotation,
        "gpu_user_annotation": _take_gpu_annotation,
    }
    for event in stream_trace(path, about):
        taker = take.get(event.get("cat", ""))
        if taker is None or event.get("ph") != "X":
            continue
        try:
            begin = round(event["ts"] * 1000)
            span = begin, begin + round(event["dur"] * 1000)
            taker(events, event, str(event["name"]), span)
        except (KeyError, TypeError, OverflowError) as error:
            raise TraceError(f"{path}: an event without name, time or length: {str(event)[:200]}") from error
    return _measure(path, about, events)


def _take_kernel(events: _Events, _event: dict[str, Any], name: str, span: tuple[int, int]) -> None:
    events.on_gpu = True
    (events.gpu_communication if GPU_COMMUNICATION.search(name) else events.kernels).add(span)


def _take_operator(events: _Events, event: dict[str, Any], name: str, span: tuple[int, int]) -> None:
    if CPU_COLLECTIVE.match(name):
        events.collectives.setdefault(event.get("tid"), Gathered()).add(span)
    elif CPU_COMPUTE.match(name):
        events.operators.setdefault(event.get("tid"), Gathered()).add(span)


def _take_annotation(events: _Events, event: dict[str, Any], name: str, span: tuple[int, int]) -> None:
    if CPU_COMMUNICATION.match(name):
        events.cpu_communication.add(span)
    elif not _take_step(events.steps, name, span):
        _take_operator(events, event, name, span)


def _take_gpu_annotation(events: _Events, _event: dict[str, Any], name: str, span: tuple[int, int]) -> None:
    _take_step(events.gpu_steps, name, span)


def _take_step(steps: Numbered, name: str, span: tuple[int, int]) -> bool:
    found = STEP.fullmatch(name)
    if found is None:
        return False
    steps.setdefault((found.group(1), int(found.group(2))), []).append(span)
    return True


def _measure(path: Path, about: dict[str, Any], events: _Events) -> Trace:
    if events.on_gpu:
        communication, compute = events.gpu_communication.unite(), events.kernels.unite()
    else:
        communication = events.cpu_communication.unite()
        parts = [
            subtract(operators.unite(), events.collectives.get(thread, Gathered()).unite())
            for thread, operators in events.operators.items()
        ]
        compute = unite(span for part in parts for span in part)
    hidden = intersect(communication, compute)
    end_of_all = max((spans[-1][1] for spans in (communication, compute) if spans), default=0)
    steps = {
        number: Overlap(1, end - begin, *(length(cut(part, begin, end)) for part in (compute, communication, hidden)))
        for number, (begin, end) in _find_windows(events, end_of_all).items()
    }
    whole = sum(steps.values(), Overlap())
    if not steps:
        everything = unite([*communication, *compute])
        duration = everything[-1][1] - everything[0][0] if everything else 0
        whole = Overlap(0, duration, length(compute), length(communication), length(hidden))
    found = about.get("distributedInfo")
    rank = found.get("rank") if isinstance(found, dict) else None
    if not isinstance(rank, int):
        named = RANK_IN_NAME.search(path.name)
        rank = int(named.group(1)) if named else None
    device = "gpu" if events.on_gpu else "cpu"
    return Trace(path, rank, str(about.get("host_name", "")), device, steps, whole)


def _find_windows(events: _Events, end_of_all: int) -> dict[int, tuple[int, int]]:
    """Find each step's time; no moment belongs to two steps."""
    # Ours waits for the GPU at both ends of a traced step: there the host's mark is exact.
    own = any(name == OWN_STEP for name, _ in events.steps)
    name = OWN_STEP if own else OTHERS_STEP
    marks = {number: spans for (kind, number), spans in events.steps.items() if kind == name}
    on_gpu = {number: spans for (kind, number), spans in events.gpu_steps.items() if kind == name}
    # Elsewhere the host may be steps ahead of the GPU, whose marks tell when a step's first kernel ran, not its last.
    follow_gpu = events.on_gpu and not own and on_gpu.keys() == marks.keys()
    chosen = on_gpu if follow_gpu else marks
    begins = {number: min(begin for begin, _ in spans) for number, spans in chosen.items()}
    ends = {number: end_of_all if follow_gpu else max(end for _, end in spans) for number, spans in chosen.items()}
    ordered = sorted(begins, key=lambda number: begins[number])
    following = [*(begins[number] for number in ordered[1:]), None]
    return {
        number: (begins[number], ends[number] if after is None else min(ends[number], after))
        for number, after in zip(ordered, following)
    }
