"""The ranks that the rank hook has armed: how one is asked for its stack, and what it wrote."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import os

from orchestrator.node import processes
from orchestrator.node.probe_command import read_text
from orchestrator.node.record import record

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, NamedTuple, Optional

    Facts = Dict[str, Any]

STACKS = os.path.join("diagnosis", "stacks")
MARK_WORDS = 4
TEXT_LIMIT = 1 << 20


if TYPE_CHECKING:

    class Mark(NamedTuple):
        """What the hook wrote down when it armed a process."""

        pid: int
        ticks: int
        signal: int
        handle: int
        """The number under which that process holds its stack file open."""

else:
    Mark = record("Mark", "pid", "ticks", "signal", "handle")


def rank_path(folder: str, rank: int, ending: str) -> str:
    """Name a file of a rank: "txt" takes its stacks, "armed" tells its process, "ask" is the pipe for requests."""
    return os.path.join(folder, STACKS, "rank_%d.%s" % (rank, ending))


def read_mark(folder: str, rank: int) -> Optional[Mark]:
    """Read who is armed; None where nobody is."""
    words = read_text(rank_path(folder, rank, "armed")).split()
    if len(words) != MARK_WORDS or not all(word.isascii() and word.isdigit() for word in words):
        return None
    mark = Mark(*map(int, words))
    return mark if mark.pid > 1 and 0 < mark.signal < _signal.NSIG else None


def find_armed(folder: str, rank: Facts) -> Optional[Mark]:
    """Give the armed process of a rank, its own or one below it; None unless the signal is sure to be taken."""
    mark = read_mark(folder, rank["rank"])
    if mark is None or not processes.alive(mark.pid, mark.ticks):
        return None
    if mark.pid != rank["pid"] and rank["pid"] not in processes.line_of(mark.pid):
        return None
    return mark if catches(mark.pid, mark.signal) and holds(mark, rank_path(folder, rank["rank"], "txt")) else None


def catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal; without one this signal would kill it."""
    for line in read_text("/proc/%d/status" % pid).splitlines():
        name, _, value = line.partition(":")
        if name == "SigCgt":
            return bool(int(value, 16) >> (number - 1) & 1)
    return False


def holds(mark: Mark, path: str) -> bool:
    """Tell whether the file is still open under its number: who closed all that he had would write into another one."""
    try:
        there, here = os.stat("/proc/%d/fd/%d" % (mark.pid, mark.handle)), os.stat(path)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def signal_armed(ranks: Iterable[Facts], folder: str) -> Dict[int, int]:
    """Ask every armed rank for its stack, without waiting; give by rank where in its file the answer will begin."""
    asked = {}
    for rank in ranks:
        start = signal_rank(folder, rank)
        if start is not None:
            asked[int(rank["rank"])] = start
    return asked


def signal_rank(folder: str, rank: Facts) -> Optional[int]:
    """Ask one rank for its stack; None where it is not armed."""
    mark = find_armed(folder, rank)
    process = processes.read_process(mark.pid) if mark is not None else None
    if mark is None or process is None or process.ticks != mark.ticks:
        return None
    try:
        start = os.stat(rank_path(folder, rank["rank"], "txt")).st_size
    except OSError:
        return None
    return start if processes.send_signal(process, mark.signal) else None


def read_stack(folder: str, rank: int, start: int) -> str:
    """Read what a rank has written since it was asked."""
    try:
        handle = os.open(rank_path(folder, rank, "txt"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.pread(handle, TEXT_LIMIT, start).decode("utf-8", "replace")
    finally:
        os.close(handle)
