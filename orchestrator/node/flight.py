"""Takes the flight recorders of the ranks of a run: which collectives each of them has called, and which are not over.

Two ways lead to one that lives: the pipe that torch reads beside NCCL, whose dump also holds who called, and comes after
seconds; and the rank hook, whose dump comes at once, and for every backend. Both are asked at the same time.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import stat
import threading
import time
import zlib
from typing import Any, Dict, List, Optional, Tuple

from orchestrator.node import armed, processes, pyspy, report, runfolder
from orchestrator.node.probe_command import read_text

Facts = Dict[str, Any]
LIMIT_S = 9.0
"""Torch 2.11 took 4.4 to 5 s for its first dump, up to one of them until it looks at its pipe."""
HOOK_LESS_S = 4.0
"""A thread of Python answers in milliseconds, or not at all."""
POLL_S = 0.02
MOST_READ = 64 << 20
MOST_BYTES = 16 << 20
"""Of one rank; two thousand calls with their callers are one or two MiB."""
MOST_IN_ALL = 8 << 20
"""All of it, packed, is held in memory on its way, several times; packed it is a tenth."""
EARLIER_S = 5.0
"""The clock of a file system need not be ours; a file of an earlier attempt is older than that."""
PIPE = (("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",), "nccl_pipe_rank_")
FILE = (("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), "nccl_trace_rank_")
Place = Tuple[Tuple[str, ...], str]
"""The variables that say where, the one that counts first; and how it is called in the run folder."""


def take_dumps(folder: str, order: Facts) -> Facts:
    """Take the dumps of the ranks of a run folder, and what those left that have ended; "ranks" limits them.

    With "left" nobody is asked for one: what lies there is taken, and that at once.
    """
    status = runfolder.read_status(folder) or {}
    wanted = order.get("ranks")
    ranks = report.last_ranks(status) if runfolder.is_of_this_boot(status) else []
    until = time.monotonic() + LIMIT_S
    takers = [Taker(folder, rank) for rank in ranks if not wanted or rank["rank"] in wanted]
    if order.get("left"):
        works = [taker.take_left for taker in takers]
    else:
        works = [functools.partial(taker.take, until) for taker in takers]
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + 1.0 - time.monotonic()))
    found: List[Facts] = []
    why: Dict[str, str] = {}
    room = MOST_IN_ALL
    for taker in takers:
        packed = zlib.compress(taker.data, 1) if len(taker.data) <= MOST_BYTES else b""
        if not taker.data:
            why[str(taker.rank)] = taker.why
        elif not packed or len(packed) > room:
            why[str(taker.rank)] = f"its dump has {len(taker.data) >> 20} MiB, more than is sent"
        else:
            room -= len(packed)
            data = base64.b64encode(packed).decode()
            found.append({"rank": taker.rank, "data": data, "how": taker.how, "age_s": round(taker.age_s, 1)})
    return {"ranks": found, "why": why}


class Taker:
    """The flight recorder of one rank."""

    def __init__(self, folder: str, rank: Facts) -> None:
        self._folder = os.path.abspath(folder)
        self._event = rank
        self.rank = int(rank["rank"])
        self.data = b""
        self.how = ""
        self.age_s = 0.0
        """Of a file that lay there: it tells of the moment when it was written, and no more."""
        self.why = "no answer in time"

    def take(self, until: float) -> None:
        """Take it by the best way that leads there."""
        lives, env = self._look()
        file = self._place(env, FILE)
        before = signature(file)
        by_pipe = lives and poke(self._place(env, PIPE) + ".pipe")
        by_hook = lives and self._ask_hook()
        why = "" if lives else "it has ended and left no dump"
        if lives and not by_pipe and not by_hook:
            why = "it has no pipe of NCCL, and the rank hook is not in it"
        if by_hook:
            why = self._wait_for_hook(until)
        if by_pipe and not self._wait_for_pipe(file, before, until) and not self.data:
            why = "torch has taken the request and gave no dump in time"
        if not self.data:
            self._take_file(file, before)
        self.why = why

    def take_left(self) -> None:
        """Take what torch wrote by itself when a collective ran out of time."""
        file = self._place(self._look()[1], FILE)
        self._take_file(file, signature(file))
        self.why = "it left no dump"

    def _look(self) -> Tuple[bool, Dict[bytes, bytes]]:
        """Tell whether it lives, and with which environment."""
        if not processes.alive(self._event["pid"], self._event["ticks"]):
            return False, {}
        return True, processes.environ_of(pyspy.find_python(self._event["pid"]))

    def _take_file(self, file: str, before: Optional[Tuple[float, int]]) -> None:
        if before is not None and before[0] >= self._event["time"] - EARLIER_S:
            self._keep(read_whole(file), "file")
            self.age_s = max(0.0, time.time() - before[0])

    def _keep(self, data: bytes, how: str) -> bool:
        if data:
            self.data, self.how = data, how
        return bool(data)

    def _wait_for_hook(self, until: float) -> str:
        """Wait for the hook; give why there is nothing."""
        while time.monotonic() < until - HOOK_LESS_S:
            if self._keep(read_whole(self._path("flight.json")), "hook"):
                return ""
            why = read_text(self._path("flight.why"))
            if why:
                return why
            time.sleep(POLL_S)
        return "its rank hook gave no dump in time: what it is in lets no other thread run"

    def _wait_for_pipe(self, file: str, before: Optional[Tuple[float, int]], until: float) -> bool:
        """Wait until torch has written its dump to the end."""
        last = before
        while time.monotonic() < until:
            now = signature(file)
            if now == last and now not in (None, before) and self._keep(read_whole(file), "pipe"):
                return True
            last = now
            time.sleep(POLL_S)
        return False

    def _path(self, ending: str) -> str:
        return armed.rank_path(self._folder, self.rank, ending)

    def _place(self, env: Dict[bytes, bytes], place: Place) -> str:
        names, own = place
        for name in names:
            prefix = os.fsdecode(env.get(name.encode(), b""))
            if os.path.isabs(prefix):
                return f"{prefix}{self.rank}"
        return os.path.join(self._folder, "diagnosis", f"{own}{self.rank}")

    def _ask_hook(self) -> bool:
        for ending in ("flight.json", "flight.why"):
            with contextlib.suppress(OSError):
                os.unlink(self._path(ending))
        return poke(self._path("ask"))


def poke(path: str) -> bool:
    """Write into a pipe if somebody reads it; never waits, and never writes into anything else."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(handle).st_mode) and os.write(handle, b"\n") > 0
    except OSError:
        return False
    finally:
        os.close(handle)


def signature(path: str) -> Optional[Tuple[float, int]]:
    """Tell one state of a file from the next; None where there is none."""
    try:
        told = os.stat(path)
    except OSError:
        return None
    return told.st_mtime, told.st_size


def read_whole(path: str) -> bytes:
    """Read a dump that is written to its end: a pickle or a JSON document; empty while it is not."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        with os.fdopen(handle, "rb") as file:
            data = file.read(MOST_READ)
    except OSError:
        return b""
    return data if (data[:1], data[-1:]) in ((b"\x80", b"."), (b"{", b"}")) else b""
