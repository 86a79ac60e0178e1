from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.node import processes
from orchestrator.node.aside import Aside


def wait_for(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def wait_done(aside: Aside, deadline_s: float = 10.0) -> Any:
    end = time.monotonic() + deadline_s
    while (found := aside.done()) is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    return json.loads(found)


def wait_without_end() -> dict[str, Any]:
    signal.pause()
    return {}


def has_ended(pid: int) -> bool:
    found = processes.read_process(pid)
    return found is None or found.state == "Z"


def test_what_was_found_out_comes_back() -> None:
    assert wait_done(Aside(lambda: {"pid": os.getpid()}, 5.0))["pid"] != os.getpid()


def test_a_long_answer_comes_whole() -> None:
    assert wait_done(Aside(lambda: {"text": "x" * 3_000_000}, 10.0)) == {"text": "x" * 3_000_000}


def test_an_error_is_an_answer() -> None:
    def fail() -> dict[str, Any]:
        raise OSError(5, "the disk hangs")

    assert wait_done(Aside(fail, 5.0)) == {"error": "OSError: [Errno 5] the disk hangs"}


def test_one_that_dies_is_told() -> None:
    def die() -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    assert wait_done(Aside(die, 5.0)) == {"error": "it ended without a word"}


def test_one_that_hangs_is_ended_with_what_it_started() -> None:
    # The child of the work would go on alone, were only the work itself killed.
    def hang() -> dict[str, Any]:
        os.fork()
        signal.pause()
        return {}

    before = set(processes.children(os.getpid()))
    aside = Aside(hang, 0.3)
    (pid,) = set(processes.children(os.getpid())) - before
    wait_for(lambda: bool(processes.children(pid)))
    (grandchild,) = processes.children(pid)
    assert wait_done(aside) == {"error": "no answer within 0.3 s"}
    for one in (pid, grandchild):
        wait_for(lambda one=one: has_ended(one))  # type: ignore[misc]


def test_nothing_of_the_session_is_open_in_it() -> None:
    # sshd waits for everyone who holds the end of its pipes.
    mine, other = os.pipe()
    os.set_inheritable(other, True)

    def look() -> dict[str, Any]:
        return {"open": len(list(Path("/proc/self/fd").iterdir())), "out": str(Path("/proc/self/fd/1").readlink())}

    found = wait_done(Aside(look, 5.0))
    assert found["out"] == os.devnull
    # stdin, stdout, stderr, the pipe of the answer, and the folder that is being listed.
    assert found["open"] == 5
    os.close(mine)
    os.close(other)


def test_to_close_it_ends_the_work() -> None:
    before = set(processes.children(os.getpid()))
    aside = Aside(wait_without_end, 60.0)
    (pid,) = set(processes.children(os.getpid())) - before
    aside.close()
    assert processes.read_process(pid) is None
