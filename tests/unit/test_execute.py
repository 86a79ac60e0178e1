"""One command on this very machine, through the same program as on a node: nothing of it outlives the call."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from orchestrator.node import processes
from orchestrator.phases.execute import Execution
from orchestrator.transport.local import LocalLink
from orchestrator.values import Executed, Node

DEAF = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is started from here on ignores it too
words = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(words, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, words)
    os._exit(0)
print("out", flush=True)
open(sys.argv[1], "w").close()
time.sleep(600)
"""
LINK = LocalLink(Node(name="here", host="localhost", local=True))


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A variable that everything of this test carries; nothing carries it at the end."""
    mark = uuid4().hex
    monkeypatch.setenv("T_EXECUTE", mark)
    yield mark
    LINK.close()
    wait_for(lambda: find(mark) == [], 10, "nothing is left")


def find(mark: str) -> list[int]:
    """The processes that carry a mark, but this one."""
    pids = [pid for pid in processes.all_pids() if processes.environ_of(pid).get(b"T_EXECUTE") == mark.encode()]
    return [pid for pid in pids if pid != os.getpid() and processes.read_process(pid) is not None]


def wait_for(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.01)


def execution(*words: str, timeout_s: float | None = None) -> Execution:
    return Execution({0: LINK}, [os.fsencode(word) for word in words], timeout_s, 60.0)


def run(*words: str, timeout_s: float | None = None) -> Executed:
    """Run a command to its end."""
    one = execution(*words, timeout_s=timeout_s)
    one.run()
    assert one.errors == {}
    return one.results[0]


@pytest.mark.usefixtures("mark")
def test_end_and_output() -> None:
    done = run("sh", "-c", "echo out; echo err >&2; cat; exit 7")
    assert (done.code, done.signal, done.stdout.data, done.stderr.data) == (7, None, b"out\n", b"err\n")
    assert not done.clean
    assert run("true").clean
    assert run("sh", "-c", "kill -TERM $$").signal == 15
    assert (run("/nowhere/at/all").code, run("/etc/passwd").code) == (127, 126)
    assert run("/etc/passwd").not_started == "Permission denied"


@pytest.mark.usefixtures("mark")
def test_a_deaf_tree_ends_with_the_order_to_stop(tmp_path: Path) -> None:
    one = execution(sys.executable, "-c", DEAF, str(tmp_path / "ready"))

    def press() -> None:
        wait_for((tmp_path / "ready").exists, 30, "the tree is there")
        os.kill(os.getpid(), signal.SIGINT)

    # What a shell starts in its background is deaf to Ctrl-C, and so would these tests be.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        one.run()
    signal.signal(signal.SIGINT, before)
    begin = time.monotonic()
    one.stop()
    assert time.monotonic() - begin < 8, "2 s grace"
    assert (one.results[0].ended, one.results[0].signal) == ("stopped", 9)
    assert one.results[0].stdout.data == b"out\n"


def test_a_deaf_tree_ends_when_the_launch_host_hangs_up(mark: str, tmp_path: Path) -> None:
    words = [os.fsencode(word).hex() for word in (sys.executable, "-c", DEAF, str(tmp_path / "ready"))]
    channel = LINK.open("execute", {"words": words, "timeout_s": None, "silence_s": 60.0, "keep": 100})
    wait_for((tmp_path / "ready").exists, 30, "the tree is there")
    wait_for(lambda: len(find(mark)) == 5, 10, "the porter, our program, the command, its two daemons")
    # It waits 2 s for the program and then kills it, which must not come first.
    channel.close()
    wait_for(lambda: len(find(mark)) == 1, 10, "nothing but the porter is left")


@pytest.mark.usefixtures("mark")
def test_a_limit_and_what_is_left_in_the_background(tmp_path: Path) -> None:
    late = run("sh", "-c", "echo begun; sleep 500", timeout_s=0.3)
    assert (late.ended, late.signal, late.stdout.data) == ("timed out", 15, b"begun\n")
    daemon = f"(trap 'echo bye > {tmp_path}/said; exit' TERM; sleep 500 & touch {tmp_path}/ready; wait) &"
    left = run("sh", "-c", f"{daemon} while [ ! -e {tmp_path}/ready ]; do sleep 0.02; done; echo begun")
    assert (left.code, left.ended, left.stdout.data) == (0, "", b"begun\n")
    assert left.left_behind == 2
    assert (tmp_path / "said").read_text() == "bye\n", "TERM came first"


@pytest.mark.usefixtures("mark")
def test_a_long_stream_keeps_its_ends_and_blocks_nobody() -> None:
    done = run("sh", "-c", "echo first; head -c 50000000 /dev/zero; echo last")
    assert done.code == 0
    assert done.stdout.data.startswith(b"first\n\0")
    assert done.stdout.data.endswith(b"\0last\n")
    assert len(done.stdout.data) + done.stdout.left_out == 50_000_011
