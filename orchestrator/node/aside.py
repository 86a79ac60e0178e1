"""A piece of work in a process of its own: a driver or a file system that hangs keeps nobody waiting."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import os
import time

from orchestrator.node import processes
from orchestrator.node.fastjson import dumps
from orchestrator.node.wire import write_all

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    Facts = Dict[str, Any]

FIRST_FREE = 3
"""Behind stdin, stdout and stderr."""


class Aside:
    """Work that was begun in a forked process; `done` gives its JSON once it is there, and never waits."""

    def __init__(self, work: Callable[[], Facts], limit_s: float) -> None:
        self._limit_s = limit_s
        self._end = time.monotonic() + limit_s
        self._written = bytearray()
        self._answer: Optional[bytes] = None
        self._out, into = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._out, False)
        self._pid = os.fork()
        if self._pid == 0:
            _work(work, into)
        os.close(into)

    def done(self) -> Optional[bytes]:
        """Give what was found out as JSON; None while there is work and time left."""
        if self._answer is None:
            try:
                while True:
                    data = os.read(self._out, 1 << 16)
                    if not data:
                        self._finish(bytes(self._written) or b'{"error": "it ended without a word"}')
                        break
                    self._written += data
            except BlockingIOError:
                pass
        if self._answer is None and time.monotonic() >= self._end:
            self._finish(dumps({"error": "no answer within %g s" % self._limit_s}).encode())
        return self._answer

    def close(self) -> None:
        """End the work, if it still goes on."""
        if self._answer is None:
            self._finish(b"{}")

    def _finish(self, answer: bytes) -> None:
        self._answer = answer
        os.close(self._out)
        # By its own number too: it may not have come to be the leader of its group yet.
        for kill in (os.killpg, os.kill):
            try:
                kill(self._pid, _signal.SIGKILL)
            except OSError:
                pass
        # What hangs in the kernel is left to init: to wait for it is what we must not do.
        try:
            end = time.monotonic() + 0.2
            while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
                time.sleep(0.001)
        except OSError:
            pass


def _work(work: Callable[[], Facts], into: int) -> None:
    """Be the process that works; nothing of the SSH session stays open in it, or sshd would wait for it."""
    try:
        processes.die_with_parent(_signal.SIGKILL)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for handle in range(FIRST_FREE):
            os.dup2(null, handle)
        os.closerange(FIRST_FREE, into)
        os.closerange(into + 1, 4096)
        try:
            answer = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and the run goes on
            answer = {"error": f"{type(error).__name__}: {error}"}
        write_all(into, dumps(answer).encode())
    finally:
        os._exit(0)
