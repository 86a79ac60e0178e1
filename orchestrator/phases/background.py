"""Leaves work to a process in the background: in a session of its own, heard until it says that it can go on alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.errors import AortaError
from orchestrator.output.errors import print_error, print_internal_error
from orchestrator.values import Exit

Tell = Callable[[Mapping[str, Any]], None]


class Told:
    """What the process in the background has said to us."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._pipe = pipe
        self._over = False
        """Its number may be another process's by now."""

    def wait(self) -> dict[str, Any] | None:
        """Wait for its word; None when it has ended without one, as after a run that never started."""
        with self._passed_on(), os.fdopen(self._pipe, "rb") as pipe:
            line = pipe.readline()
        if not line:
            return None
        word: dict[str, Any] = json.loads(line)
        return word

    def exit_code(self) -> int:
        """Wait for its end."""
        with self._passed_on():
            _, status = os.waitpid(self._pid, 0)
            self._over = True
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else int(Exit.FAILED)

    @contextlib.contextmanager
    def _passed_on(self) -> Iterator[None]:
        """Pass Ctrl-C and SIGTERM on: it is in another session, and would not hear of them."""

        def hand_over(number: int, _frame: object) -> None:
            if not self._over:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, number)

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, hand_over) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def start_in_background(work: Callable[[Tell], int], *, as_json: bool = False) -> Told:
    """Fork a process that does the work; its words are given by `wait`, its talk goes where ours goes until then.

    Call it while there is one thread: no lock is held in another one then.
    """
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(write)
        return Told(pid, read)
    code = int(Exit.FAILED)
    try:
        os.close(read)
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        code = work(_teller(write))
    except AortaError as error:
        code = print_error(error, as_json=as_json)
    except KeyboardInterrupt:
        code = int(Exit.INTERRUPTED)
    except BaseException as error:  # noqa: BLE001 - the edge of a process: a bug is told in one line as well
        code = print_internal_error(error, as_json=as_json)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        # Not sys.exit: what stands above us on the stack belongs to the process that forked.
        os._exit(code)


def _teller(pipe: int) -> Tell:
    open_pipe = [pipe]

    def tell(word: Mapping[str, Any]) -> None:
        if not open_pipe:
            return
        with contextlib.suppress(OSError):  # whoever started us is gone, and the work goes on
            os.write(open_pipe[0], json.dumps(word).encode() + b"\n")
        os.close(open_pipe.pop())
        leave_terminal()

    return tell


def leave_terminal() -> None:
    """Let go of the terminal or the pipes that we were started with."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
