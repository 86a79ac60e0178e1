"""Tells what every rank of a run does right now: its stack by py-spy or by the rank hook, else what /proc says of it."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, Dict, List

from orchestrator.node import armed, processes, pyspy, report, runfolder
from orchestrator.node.aside import Aside
from orchestrator.node.probe_command import NoAnswerError, read_text
from orchestrator.node.wire import Wire

Facts = Dict[str, Any]
LIMIT_S = 11.0
"""For all ranks together, before the signal; who asks gives up after 15 s."""
SIGNAL_S = 1.0
"""A stack is written in milliseconds; on a node that is short of processors it takes longer."""
SETTLED_S = 0.03
"""Nothing more is written for so long: then the stack is whole."""
POLL_S = 0.01
MOST_THREADS = 64


def main(request: Facts, wire: Wire, modules: Dict[str, str]) -> None:
    """Answer with the stacks of a run folder; request: {"run_id", "node_rank"} or {"run_folder"}, and as in the order."""
    del modules
    folder = request.get("run_folder") or os.path.join(
        os.path.expanduser("~"), ".aorta", "runs", request["run_id"], str(request["node_rank"])
    )
    if runfolder.read_status(folder) is None:
        wire.send({"found": False})
        return
    # A look at a process that hangs in the kernel may hang as well.
    aside = Aside(lambda: take_stacks(folder, request), LIMIT_S + 2 * SIGNAL_S)
    answer = aside.done()
    while answer is None:
        time.sleep(POLL_S)
        answer = aside.done()
    wire.send(json.loads(answer))


def take_stacks(folder: str, order: Facts) -> Facts:
    """Take the stacks of the ranks that run, all at once; the order may hold "ranks" (only these) and "native"."""
    began = time.monotonic()
    until = began + LIMIT_S
    looks = [Look(folder, rank) for rank in running_ranks(folder, order.get("ranks"))]
    threads = [
        threading.Thread(target=look.take, args=(until,), kwargs={"native": bool(order.get("native"))}, daemon=True)
        for look in looks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + SIGNAL_S - time.monotonic()))
    return {
        "ranks": [look.tell() for look in looks],
        "taken_s": round(time.monotonic() - began, 3),
        "py_spy": next((look.tool for look in looks if look.tool), ""),
        "machine": os.uname().machine,
    }


def running_ranks(folder: str, wanted: Any) -> List[Facts]:
    """List the ranks of a run folder that run."""
    status = runfolder.read_status(folder) or {}
    if not runfolder.is_of_this_boot(status):
        return []
    return [
        rank
        for rank in report.last_ranks(status)
        if (not wanted or rank["rank"] in wanted) and processes.alive(rank["pid"], rank["ticks"])
    ]


class Look:
    """One rank that is looked at; `tell` gives what is known so far, however long the rest takes."""

    def __init__(self, folder: str, rank: Facts) -> None:
        self._folder = folder
        self._rank = rank
        self.tool = ""
        self._how = self._text = self._state = self._wchan = ""
        self._why: List[str] = []

    def tell(self) -> Facts:
        """Give the answer for this rank."""
        return {
            "rank": self._rank["rank"],
            "local_rank": self._rank["local_rank"],
            "pid": self._rank["pid"],
            "state": self._state,
            "wchan": self._wchan,
            "how": self._how,
            "text": self._text,
            "why": "; ".join(self._why),
        }

    def take(self, until: float, *, native: bool) -> None:
        """Find out what the rank does, with the best that works here."""
        pid = self._rank["pid"]
        self._state = state_of(pid)
        self._wchan = read_text("/proc/%d/wchan" % pid)
        # What /proc says costs nothing, and it is all there is when the rest hangs.
        self._text, self._how = describe(pid), "proc"
        python = pyspy.find_python(pid)
        if python != pid:
            self._state, self._wchan = state_of(python), read_text("/proc/%d/wchan" % python)
        self._ask_pyspy(python, until, native=native)
        if self._how != "py-spy":
            self._ask_hook()

    def _ask_pyspy(self, pid: int, until: float, *, native: bool) -> None:
        self.tool = pyspy.find_pyspy(self._folder, pid)
        if not self.tool:
            self._why.append("there is no py-spy")
            return
        for deep in (True, False) if native else (False,):
            try:
                self._text = pyspy.dump(self.tool, pid, native=deep, until=until)
            except NoAnswerError as error:
                self._why.append(str(error))
            else:
                self._how = "py-spy"
                return

    def _ask_hook(self) -> None:
        start = armed.signal_rank(self._folder, self._rank)
        if start is None:
            self._why.append("the rank hook is not in it")
            return
        text = wait_for_stack(self._folder, self._rank["rank"], start)
        if text:
            self._text, self._how = text, "signal"
        else:
            self._why.append("it did not answer the signal of the rank hook")


def wait_for_stack(folder: str, rank: int, start: int) -> str:
    """Wait until a rank that was asked has written its stack to the end."""
    end = time.monotonic() + SIGNAL_S
    text, changed = "", time.monotonic()
    while time.monotonic() < end:
        now = armed.read_stack(folder, rank, start)
        if now != text:
            text, changed = now, time.monotonic()
        elif text.endswith("\n") and time.monotonic() - changed >= SETTLED_S:
            break
        time.sleep(POLL_S)
    return text


def state_of(pid: int) -> str:
    """Give the kernel's letter for a process: S, R, D, T."""
    process = processes.read_process(pid)
    return process.state if process is not None else ""


def describe(pid: int) -> str:
    """Say what /proc tells of a process and its threads."""
    lines = [
        line for line in read_text("/proc/%d/status" % pid).splitlines() if line.startswith(("Name:", "State:", "Thre"))
    ]
    lines.append("wchan=%s" % read_text("/proc/%d/wchan" % pid))
    call = read_text("/proc/%d/syscall" % pid)
    if call:
        lines.append(f"syscall={call}")
    try:
        threads = sorted(map(int, os.listdir("/proc/%d/task" % pid)))
    except OSError:
        threads = []
    for thread in threads[:MOST_THREADS]:
        place = "/proc/%d/task/%d" % (pid, thread)
        state = read_text(place + "/stat").rpartition(")")[2].split()[:1]
        words = (str(thread), read_text(place + "/comm"), *state, read_text(place + "/wchan"))
        lines.append("thread " + " ".join(words))
    return "\n".join(lines) + "\n"
