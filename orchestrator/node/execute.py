"""Runs one command on this node for `exec`, and ends it with everything below it when nobody waits for it any more.

What the command leaves in the background ends with it as well: nothing of a call outlives the call.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import time
from typing import Any

from orchestrator.node import ending, exit_status, processes
from orchestrator.node.wire import Wire

GRACE_S = 2.0
"""Between TERM and KILL."""
ALONE_GRACE_S = 1.0
"""The same when the launch host is gone: on its own machine we are killed ourselves 2 s after it has hung up."""
LOOK_S = 0.02
"""How often the tree is looked at once its command has ended."""
DRAIN_S = 1.0
"""A pipe that somebody outside the tree holds open never ends: the rest of it is waited for this long."""
NOT_FOUND, NOT_STARTED = 127, 126
"""As a shell says it."""


class Kept:
    """The beginning and the end of a stream, of which the middle is left out when it is too long."""

    def __init__(self, limit: int) -> None:
        self.half = limit // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self.total += len(data)
        room = max(0, self.half - len(self.head))
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * self.half:
            del self.tail[: -self.half]

    def give(self) -> tuple[bytes, int, int]:
        """Give what is kept, where something is missing in it, and how many bytes of it."""
        del self.tail[: max(0, len(self.tail) - self.half)]
        return bytes(self.head + self.tail), len(self.head), self.total - len(self.head) - len(self.tail)


class Execution:
    """The state of one command."""

    def __init__(self, request: dict[str, Any], wire: Wire) -> None:
        self.wire = wire
        self.words = [bytes.fromhex(word) for word in request["words"]]
        self.kept = {"stdout": Kept(request["keep"]), "stderr": Kept(request["keep"])}
        self.pipes: dict[int, Kept] = {}
        self.born = time.monotonic()
        self.limit = math.inf if request["timeout_s"] is None else self.born + request["timeout_s"]
        self.silence_s = float(request["silence_s"])
        self.silent_by = self.born + self.silence_s
        self.child: subprocess.Popen[bytes] | None = None
        self.ended = ""
        """Why it was ended before its time."""
        self.deadline = math.inf
        self.left_behind = 0
        self.nobody_waits = False
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def start(self) -> dict[str, Any] | None:
        """Start the command in a session of its own; when it does not start, give the answer that says so."""
        try:
            self.child = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=before_command,  # noqa: PLW1509 - we have one thread, so it is safe
            )
        except (OSError, ValueError) as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
            reason = getattr(error, "strerror", None) or str(error)
            return {"code": code, "signal": None, "not_started": reason}
        assert self.child.stdout is not None
        assert self.child.stderr is not None
        self.pipes = {
            self.child.stdout.fileno(): self.kept["stdout"],
            self.child.stderr.fileno(): self.kept["stderr"],
        }
        return None

    # -- ending

    def living(self) -> list[processes.Process]:
        """List what lives below us."""
        return ending.living(processes.descendants(os.getpid()))

    def reap(self) -> None:
        """Collect what has ended: the command, and the orphans that came to us."""
        assert self.child is not None
        self.child.poll()
        ending.collect_orphans(self.child.pid)

    def end(self, why: str) -> None:
        """TERM everything once; what is there after the grace is killed."""
        if self.deadline == math.inf:
            self.ended = why
            self.term(self.living())

    def term(self, found: list[processes.Process]) -> None:
        """Ask processes to end within the grace."""
        self.deadline = time.monotonic() + GRACE_S
        for process in found:
            processes.send_signal(process, signal.SIGTERM)

    def finished(self) -> bool:
        """Tell whether nothing is left; what the command left behind is ended like the command itself."""
        assert self.child is not None
        self.reap()
        if self.child.returncode is None:
            return False
        left = self.living()
        if left and self.deadline == math.inf:
            self.left_behind = len(left)
            self.term(left)
        return not left

    # -- the loop

    def run(self) -> list[processes.Process]:
        """Wait until the command and all below it have ended; give what could not be ended."""
        survivors: list[processes.Process] = []
        while not self.finished():
            now = time.monotonic()
            if now >= self.deadline:
                _, survivors = ending.kill_until_empty(ending.below(os.getpid()), self.reap)
                break
            if now >= self.limit:
                self.end("timed out")
            if now >= self.silent_by:
                self.silent_by = math.inf
                self.end("the launch host was silent")
            self.wait(now)
        self.drain()
        return survivors

    def wait(self, now: float) -> None:
        """Wait for whatever comes first, and take it."""
        assert self.child is not None
        due = min(self.deadline, self.silent_by, self.limit if self.deadline == math.inf else math.inf)
        wait_s = LOOK_S if self.child.returncode is not None else max(0.0, due - now)
        poll = select.poll()
        for handle in (self.wake_read, *self.pipes, *([] if self.nobody_waits else [0])):
            poll.register(handle, select.POLLIN)
        for handle, _ in poll.poll(min(wait_s, 60.0) * 1000):
            if handle == self.wake_read:
                for number in os.read(handle, 4096):
                    if number != signal.SIGCHLD:
                        self.end("a signal on the node")
            elif handle == 0:
                self.hear()
            else:
                self.take(handle)

    def hear(self) -> None:
        """Take what the launch host says: that it is there, or that it has had enough; its end is ours."""
        orders = self.wire.ready_orders()
        self.silent_by = time.monotonic() + self.silence_s
        if orders is None:
            self.nobody_waits = True
            self.end("the launch host left")
            self.deadline = min(self.deadline, time.monotonic() + ALONE_GRACE_S)
        elif any(order["op"] == "stop" for order in orders):
            self.end("stopped")

    def take(self, handle: int) -> None:
        """Take what a pipe holds."""
        data = os.read(handle, 1 << 18)
        if data:
            self.pipes[handle].feed(data)
        else:
            del self.pipes[handle]

    def drain(self) -> None:
        """Take what is still in the pipes."""
        end = time.monotonic() + DRAIN_S
        while self.pipes and time.monotonic() < end:
            poll = select.poll()
            for handle in self.pipes:
                poll.register(handle, select.POLLIN)
            for handle, _ in poll.poll(100):
                self.take(handle)

    def answer(self, survivors: list[processes.Process]) -> dict[str, Any]:
        """Say how it ended."""
        assert self.child is not None
        return {
            **exit_status.describe_code(self.child.returncode),
            "ended": self.ended,
            "left_behind": self.left_behind,
            "survivors": ending.describe(survivors),
        }

    def send(self, answer: dict[str, Any]) -> None:
        """Send the answer with both streams behind it."""
        body = b""
        for name, kept in self.kept.items():
            data, at, missing = kept.give()
            answer[name] = {"bytes": len(data), "cut_at": at, "left_out": missing}
            body += data
        answer["seconds"] = time.monotonic() - self.born
        # A link that is cut takes nothing and says nothing: its end is not waited for here.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(self.silence_s))
        self.wire.send({"t": "end", **answer}, body)


def before_command() -> None:
    """Between fork and exec: die with us, whatever ends us."""
    processes.die_with_parent(signal.SIGKILL)


def main(request: dict[str, Any], wire: Wire, modules: dict[str, str]) -> None:
    """Run the command and answer with its end and its output."""
    del modules
    processes.become_subreaper()
    execution = Execution(request, wire)
    answer = execution.start()
    if answer is None:
        answer = execution.answer(execution.run())
    if not execution.nobody_waits:
        execution.send(answer)
